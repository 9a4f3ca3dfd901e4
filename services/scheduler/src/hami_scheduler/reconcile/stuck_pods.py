"""Report pods that still have no cards, and pods whose card has a problem (architecture 4).

A bound pod can't be unbound, so its slices stay reserved (architecture 4). After a minute without
its cards the reason is stored with the allocation (and so in its history), shown in an event on the
pod, and counted. A later, different reason is shown too, but an image that can't be pulled must not
fill the history with the phases of its back-off.

A card may be lost, replaced, cordoned, unhealthy or in another mode, or its node silent, while the
pod continues: without an event its owner would learn of it from failing programs. Each pod gets one
event with the problem of a card that it holds, and what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachetools import TTLCache
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.granted_cards import ConditionKind, texts_of
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import NotFound
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.ledger.model import StateStep
from hamicommon.process.best_effort import log_failure
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.state_machine import HOW_BOUND, STATUSES
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import ALLOCATE_LATE, CARD_CHANGED, Announcer
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

logger = logging.getLogger(__name__)

ACTOR = "late-watch"
REPORT_INTERVAL_S = 300.0
MAX_REPORTED = 10_000
"""Maximum number of remembered reports; a forgotten pod is checked again."""
PREFIX = "bound and without its cards: "


@dataclass(eq=False, kw_only=True)
class StuckPodReporter:
    """Find bound pods that have waited too long for their cards."""

    ledger: AllocationStore
    pods: PodApi
    silent: Callable[[], frozenset[NodeName]]
    announcer: Announcer
    instruments: SchedulerInstruments
    late_s: float
    _reported: TTLCache[AllocationId, None] = field(
        default_factory=lambda: TTLCache(MAX_REPORTED, REPORT_INTERVAL_S), init=False
    )

    async def once(self) -> int:
        """Check all bound pods once; return the number of late ones. Raises: Unavailable."""
        late = await self.ledger.late(self.late_s)
        self.instruments.bound_late.set(len(late))
        for allocation in late:
            # Why the node could not do it is already there, in its own report.
            ours = allocation.reason in HOW_BOUND or allocation.reason.startswith(PREFIX)
            if not ours or allocation.id in self._reported:
                continue
            uid, failed = allocation.pod_uid, "Failed to report a pod that waits for its cards"
            # It is looked at again; the others need not wait for it.
            with (
                log_failure(logger, f"{failed}; trying again", pod_uid=uid),
                self.instruments.bulkhead.item("late", uid),
            ):
                if await self._report(allocation):
                    self._reported[allocation.id] = None
        return len(late)

    async def _report(self, allocation: Allocation) -> bool:
        """Report the pod; return False if its row has changed since."""
        try:
            pod = await self.pods.get(allocation.namespace, allocation.pod_name)
        except NotFound:
            return False
        silent = allocation.node in self.silent()
        reason = PREFIX + why_late(pod, allocation, agent_silent=silent)
        if pod["metadata"]["uid"] != allocation.pod_uid:
            return False
        if reason == allocation.reason:
            return True
        step = StateStep.of(allocation, AllocationState.BOUND, actor=ACTOR, reason=reason)
        if await self.ledger.advance(step) is None:
            return False
        logger.warning(
            "Found a pod stuck before Allocate",
            extra={"pod_uid": allocation.pod_uid, "node": allocation.node, "reason": reason},
        )
        self.announcer.announce(PodRef.of(allocation), ALLOCATE_LATE, reason, series="late")
        return True


def why_late(pod: JsonMapping, allocation: Allocation, *, agent_silent: bool) -> str:
    """Explain what the pod waits for, by its object and its node."""
    node, status = allocation.node, pod.get("status") or {}
    if agent_silent:
        return f"the node-agent of {node} is silent"
    waiting = [
        f"{one['name']} {one['state']['waiting'].get('reason') or 'waits'}"
        for key in STATUSES
        for one in status.get(key) or ()
        if (one.get("state") or {}).get("waiting")
    ]
    if waiting and allocation.has_agent:
        return (
            f"the kubelet of {node} has picked up the pod ({', '.join(waiting)}), but its "
            "node-agent has not reported that every container has its cards"
        )
    if waiting:
        return f"its containers have not started on {node}: {', '.join(waiting)}"
    return f"the kubelet of {node} has not picked up the pod"


@dataclass(eq=False)
class CardConditionReporter:
    """Write an event on each pod whose granted card has a new problem.

    `silent`: nodes whose agents are silent.
    """

    queries: PostgresQueries
    silent: Callable[[], Collection[NodeName]]
    announcer: Announcer
    bulkhead: Bulkhead
    _shown: dict[PodUid, str] = field(default_factory=dict, init=False)

    async def once(self) -> int:
        """Check once; return the number of pods with such a card. Raises: Unavailable."""
        by_pod: dict[PodUid, list[PodCard]] = {}
        for card in await self.queries.pod_cards(silent=self.silent()):
            by_pod.setdefault(card.pod.uid, []).append(card)
        shown: dict[PodUid, str] = {}
        for uid, cards in by_pod.items():
            text = " ".join(texts_of(card.condition for card in cards))
            if not text:
                continue
            shown[uid] = text
            if self._shown.get(uid) != text:
                with self.bulkhead.item("card-conditions", uid):
                    self._show(cards, text)
        self._shown = shown
        return len(shown)

    def _show(self, cards: list[PodCard], text: str) -> None:
        # A cordon is intended, and the pod continues.
        wished = {ConditionKind.HEALTHY, ConditionKind.CORDONED}
        self.announcer.announce(
            cards[0].pod,
            CARD_CHANGED,
            text,
            warning=any(card.condition.kind not in wished for card in cards),
            series="card",
            once=True,
        )
