"""Waiting pods, their last /filter results, and their retries.

Fed by the pod watch and by /filter; read by the requeuer (which pods may fit now?) and by the watch
(has kube-scheduler given this pod up since?). These are only hints: losing them costs time, never
correctness. When capacity becomes free, `Requeuer` wakes pods by one patch of `hami.io/retry-at`
each: kube-scheduler tries a refused pod again within milliseconds of a change of its annotations
(and of the end of its back-off), and otherwise may wait for minutes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cachetools import LRUCache, TTLCache
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import PodRequest
from hamicommon.k8s.annotations import RETRY_AT
from hamicommon.k8s.pod_groups import PodGroup
from hamicommon.k8s.types import Json, JsonMapping
from hamicommon.placement.cluster.arrivals import HALF_LIFE, shape_of
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.walks.walked import shape_key
from hamicommon.process.best_effort import log_failure

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import DecisionLog

MAX_VISITS = 20_000
"""Maximum pods whose last /filter is remembered; older ones wait for their deadline."""


MAX_REFUSED = 1000
"""Maximum pods whose last refusals are remembered."""
REFUSED_S = 30.0
"""Time for which a node offered to a refused pod counts as possible for it."""
_MAX_SAMPLES = 5
"""Number of samples that are remembered, as kube-scheduler offers other nodes each time."""


class RequestShape:
    """Key that is equal for pods that fit, or do not fit, on the same nodes."""

    __slots__ = ("_hash", "_key")

    def __init__(self, request: PodRequest) -> None:
        self._key: Hashable = shape_key(request)
        # A pass over all waiting pods asks for it of each.
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestShape) and self._key == other._key


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPod:
    """Pod without a node."""

    uid: PodUid
    namespace: str
    name: str
    created_at: str
    priority: int
    request: PodRequest
    shape: RequestShape = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", RequestShape(self.request))

    @property
    def place(self) -> tuple[int, str, PodUid]:
        """Return the pod's place in kube-scheduler's queue."""
        return -self.priority, self.created_at, self.uid


@dataclass(frozen=True, slots=True)
class _Visit:
    version: int
    verdict: tuple[str, ...]
    nominated: str


class WaitingPods:
    """All waiting pods of ours, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pods: dict[PodUid, WaitingPod] = {}
        self._places: list[tuple[int, str, PodUid]] = []
        """Places of all pods, in order."""
        self._since_s: dict[PodUid, float] = {}
        self._visits: LRUCache[PodUid, _Visit] = LRUCache(MAX_VISITS)
        self._offered: TTLCache[PodUid, tuple[Sequence[NodeName], ...]] = TTLCache(
            MAX_REFUSED, REFUSED_S
        )

    def note_visit(self, pod: JsonMapping, request: PodRequest) -> None:
        """Remember the pod's request at its /filter."""
        self._visits[request.uid] = _Visit(
            _version(pod), scheduled_verdict(pod), _nominated_node(pod)
        )

    def note_refusal(self, uid: PodUid, offered: Sequence[NodeName]) -> None:
        """Remember the nodes on which a pod was refused."""
        self._offered[uid] = (*self._offered.get(uid, ())[1 - _MAX_SAMPLES :], offered)

    def offered_to(self, uid: PodUid) -> frozenset[NodeName]:
        """Return the nodes of the pod's refusals in the last `REFUSED_S`; empty without one."""
        return frozenset[NodeName]().union(*self._offered.get(uid, ()))

    def has_visited(self, uid: PodUid) -> bool:
        """Return whether the pod has come to /filter, as far as remembered."""
        return uid in self._visits

    def is_given_up_since(self, pod: JsonMapping) -> bool:
        """Return whether kube-scheduler set PodScheduled=False after the pod's last /filter here.

        The condition that an earlier attempt left behind, arriving late, is none: the pod must be
        newer than the one that /filter saw, and the verdict another.
        """
        visit = self._visits.get(PodUid(pod["metadata"]["uid"]))
        verdict = scheduled_verdict(pod)
        return (
            visit is not None
            and verdict[:1] == ("False",)
            and verdict != visit.verdict
            and _version(pod) > visit.version
        )

    def is_nominated_since(self, pod: JsonMapping, node: NodeName) -> bool:
        """Return whether kube-scheduler nominated the node after the pod's last /filter here.

        It does before it waits for something between its decision and /bind.
        """
        visit = self._visits.get(PodUid(pod["metadata"]["uid"]))
        return visit is not None and visit.nominated != _nominated_node(pod) == node

    def add(self, pod: WaitingPod) -> None:
        """Add a pod without a node."""
        self._leave(pod.uid)
        self._pods[pod.uid] = pod
        self._since_s.setdefault(pod.uid, self._clock())
        insort(self._places, pod.place)

    def waits_s(self, uid: PodUid) -> float:
        """Return for how long the pod has waited, by a clock that does not jump; 0: not known."""
        now = self._clock()
        return now - self._since_s.get(uid, now)

    def remove(self, uid: PodUid) -> None:
        """Remove a pod that has a node, or is gone."""
        self._leave(uid)
        self._since_s.pop(uid, None)
        self._visits.pop(uid, None)

    def _leave(self, uid: PodUid) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            del self._places[bisect_left(self._places, pod.place)]

    def in_order(self) -> list[WaitingPod]:
        """Return the waiting pods in kube-scheduler's order: highest priority, then oldest."""
        return [self._pods[uid] for _, _, uid in self._places]

    def __len__(self) -> int:
        return len(self._pods)


def scheduled_verdict(pod: JsonMapping) -> tuple[str, ...]:
    """Return (status, last transition, reason, message) of PodScheduled; empty without it."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled":
            keys = ("status", "lastTransitionTime", "reason", "message")
            return tuple(str(condition.get(key, "")) for key in keys)
    return ()


def _nominated_node(pod: JsonMapping) -> str:
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def _version(pod: JsonMapping) -> int:
    text = str(pod["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0


ARRIVALS_INTERVAL_S = 600.0
_MAX_LATER = 500
"""Maximum number of decisions that are read again."""
_CHUNK = 100
"""Number of decisions that are read before other tasks get a turn."""
_MAX_COUNTED = 4 * HALF_LIFE
"""Maximum number of pods that are known to be counted."""


class ArrivalCounts:
    """Count each pod once, however often it reaches /filter."""

    def __init__(self, cluster: ClusterView, decisions: DecisionLog) -> None:
        self._cluster = cluster
        self._decisions = decisions
        self._counted: LRUCache[PodUid, None] = LRUCache(_MAX_COUNTED)
        self.restored = False
        """True once the ledger has been read."""

    def count(self, request: PodRequest) -> None:
        """Count a pod that is to be placed, unless it was counted."""
        if request.uid in self._counted:
            return
        self._counted[request.uid] = None
        shape = shape_of(request)
        if shape is not None:
            self._cluster.usual.add_arrival(shape)

    async def restore(self) -> None:
        """Count the pods of the ledger's latest decisions, oldest first. Raises: Unavailable."""
        latest = await self._decisions.arrivals(_MAX_LATER if self.restored else HALF_LIFE)
        for number, request in enumerate(reversed(latest)):
            self.count(request)
            if number % _CHUNK == 0:
                # Requests have their turn in between: thousands are counted.
                await asyncio.sleep(0)
        self.restored = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Pods that ask for cards, one by one and by shape."""

    waiting: WaitingPods
    arrivals: ArrivalCounts

    def on_filter(self, pod: Json, request: PodRequest) -> None:
        """Record a pod that reached /filter."""
        self.waiting.note_visit(pod, request)
        self.arrivals.count(request)


logger = logging.getLogger(__name__)

# More would only compete for the same few slices (architecture 3.7).
MAX_REQUEUED = 10
# Each look costs about a millisecond of the event loop.
MAX_LOOKS = 100
# Pods that are skipped, because a similar one did not fit, until requests have their turn.
MAX_PASSED_OVER = 500
# Lets the events of one freeing (a job of many pods) come together.
SETTLE_S = 0.02


@dataclass(eq=False, kw_only=True)
class Requeuer:
    """Make kube-scheduler retry waiting pods that fit now, each time capacity was freed."""

    view: ClusterState
    waiting: WaitingPods
    pods: PodApi
    instruments: SchedulerInstruments
    group_of: Callable[[PodUid], PodGroup | None] = lambda _: None
    group_fits: Callable[[PodGroup], Awaitable[bool]] | None = None
    _freed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _freed_at: float = field(init=False, default=0.0)
    _woken: dict[PodUid, PodRequest] = field(init=False, default_factory=dict)
    _has_woken: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def capacity_freed(self) -> None:
        """Check the waiting pods soon, because capacity was freed."""
        if not self._freed.is_set():
            self._freed_at = time.perf_counter()
        self._freed.set()

    def wake(self, pods: Iterable[PodRequest]) -> None:
        """Make kube-scheduler retry these pods soon."""
        self._woken |= {pod.uid: pod for pod in pods}
        if self._woken:
            self._has_woken.set()

    async def run_wakes(self) -> None:
        """Retry the pods given to `wake`, until cancelled."""
        while True:
            await self._has_woken.wait()
            self._has_woken.clear()
            woken, self._woken = list(self._woken.values()), {}
            for first in range(0, len(woken), MAX_REQUEUED):
                some, at = woken[first : first + MAX_REQUEUED], time.perf_counter()
                await asyncio.gather(*(self._requeue(pod, at) for pod in some))

    async def run(self) -> None:
        """Retry fitting pods until cancelled."""
        while True:
            await self._freed.wait()
            await asyncio.sleep(SETTLE_S)
            self._freed.clear()
            freed_at = self._freed_at
            for pod in await self.fitting():
                await self._requeue(pod, freed_at)

    async def fitting(self) -> list[WaitingPod]:
        """Return the first waiting pods that fit into the view, in the order of the queue."""
        found: list[WaitingPod] = []
        refused: set[RequestShape] = set()
        groups: dict[PodGroup, bool] = {}
        looks = 0
        for number, pod in enumerate(self.waiting.in_order(), start=1):
            if number % MAX_PASSED_OVER == 0:
                await asyncio.sleep(0)
            group = self.group_of(pod.uid)
            if group is not None and self.group_fits is not None:
                # All of its members, which may be more than are woken together, or none.
                if group not in groups:
                    groups[group] = False
                    with self.instruments.bulkhead.item("requeue", group.key):
                        groups[group] = await self.group_fits(group)
                    looks += 1
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
        failed = "Failed to requeue a waiting pod"
        with log_failure(logger, failed, level=logging.INFO, pod_uid=pod.uid):
            await self.pods.annotate(
                PodRef(pod.namespace, pod.name, pod.uid),
                annotations={RETRY_AT: datetime.now(UTC).isoformat(timespec="milliseconds")},
            )
            self.instruments.requeues.inc()
            spent_s = time.perf_counter() - freed_at
            self.instruments.freed_to_retry_seconds.observe(spent_s)
