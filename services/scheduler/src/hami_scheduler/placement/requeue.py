"""Wakes pods that wait, when capacity became free: one patch of `hami.io/retry-at` each.

kube-scheduler tries a refused pod again within milliseconds of a change of its annotations (and of
the end of its back-off), and otherwise may wait for minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import HamiError
from hamicommon.k8s.annotations import RETRY_AT
from hamicommon.k8s.pod_groups import PodGroup
from hamicommon.placement.engine import decide

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.waiting_pods import RequestShape, WaitingPod, WaitingPods
from hami_scheduler.ports.cluster import PodApi

logger = logging.getLogger(__name__)

# More at once would only meet each other at the same few slices (architecture 3.7).
MAX_REQUEUED = 10
# Each look costs about a millisecond of the event loop.
MAX_LOOKS = 100
# Pods that are passed over because one like them did not fit, until requests have their turn.
MAX_PASSED_OVER = 500
# Lets the events of one freeing (a job of many pods) come together.
SETTLE_S = 0.02


@dataclass(eq=False, kw_only=True)
class Requeuer:
    """Looks for waiting pods that fit now, each time capacity was freed."""

    view: ClusterState
    waiting: WaitingPods
    pods: PodApi
    instruments: SchedulerInstruments
    group_of: Callable[[PodUid], PodGroup | None] = lambda _: None
    group_fits: Callable[[PodGroup], bool] = lambda _: True
    _freed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _freed_at: float = field(init=False, default=0.0)
    _woken: dict[PodUid, PodRequest] = field(init=False, default_factory=dict)
    _has_woken: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def capacity_freed(self) -> None:
        """Something became free."""
        if not self._freed.is_set():
            self._freed_at = time.perf_counter()
        self._freed.set()

    def wake(self, pods: Iterable[PodRequest]) -> None:
        """Have kube-scheduler try these pods, soon."""
        self._woken |= {pod.uid: pod for pod in pods}
        if self._woken:
            self._has_woken.set()

    async def run_wakes(self) -> None:
        """Wake the pods that were named, until cancelled."""
        while True:
            await self._has_woken.wait()
            self._has_woken.clear()
            woken, self._woken = list(self._woken.values()), {}
            for first in range(0, len(woken), MAX_REQUEUED):
                some, at = woken[first : first + MAX_REQUEUED], time.perf_counter()
                await asyncio.gather(*(self._requeue(pod, at) for pod in some))

    async def run(self) -> None:
        """Wake pods until cancelled."""
        while True:
            await self._freed.wait()
            await asyncio.sleep(SETTLE_S)
            self._freed.clear()
            freed_at = self._freed_at
            for pod in await self.fitting():
                await self._requeue(pod, freed_at)

    async def fitting(self) -> list[WaitingPod]:
        """The first waiting pods that fit into the view, in the order of the queue."""
        found: list[WaitingPod] = []
        refused: set[RequestShape] = set()
        groups: dict[PodGroup, bool] = {}
        looks = 0
        for number, pod in enumerate(self.waiting.in_order(), start=1):
            if number % MAX_PASSED_OVER == 0:
                await asyncio.sleep(0)
            group = self.group_of(pod.uid)
            if group is not None:
                # All of its members, which may be more than are woken at once, or none.
                if group not in groups:
                    groups[group] = False
                    with self.instruments.bulkhead.item("requeue", group.key):
                        groups[group] = self.group_fits(group)
                    looks += 1
                    await asyncio.sleep(0)
                if groups[group]:
                    found.append(pod)
                if looks == MAX_LOOKS:
                    break
                continue
            shape = pod.shape
            if shape in refused:
                continue
            refused.add(shape)  # until it is known to fit
            with self.instruments.bulkhead.item("requeue", pod.uid):
                if decide(pod.request, self.view.cluster).placement is not None:
                    refused.discard(shape)
                    found.append(pod)
            looks += 1
            if len(found) >= MAX_REQUEUED or looks == MAX_LOOKS:
                break
            await asyncio.sleep(0)  # requests have their turn
        return found

    async def _requeue(self, pod: WaitingPod | PodRequest, freed_at: float) -> None:
        try:
            await self.pods.annotate(
                pod.namespace,
                pod.name,
                uid=pod.uid,
                annotations={RETRY_AT: datetime.now(UTC).isoformat(timespec="milliseconds")},
                labels={},
            )
            self.instruments.requeues.inc()
            spent_s = time.perf_counter() - freed_at
            self.instruments.freed_to_retry_seconds.observe(spent_s)
        except HamiError as exc:
            logger.info(
                "Failed to requeue a waiting pod", extra={"pod_uid": pod.uid, "error": str(exc)}
            )
