"""Watch pods, and turn their changes into steps of allocations.

Handlers of the informers only note what changed; one worker handles it, with the ledger's row read
again. A pod is handled when a fact changed that allocations need (`state_machine.facts_of`); all
other updates cost a comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.k8s.annotations import ASSIGNED_NODE, annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.cluster_state import ClusterState, Forgotten
from hami_scheduler.ledger.state_machine import (
    TERMINAL_PHASES,
    PodFacts,
    facts_of,
    plugin_failed,
    verdict,
)
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods, scheduled_verdict
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.work_queue import WorkQueue

logger = logging.getLogger(__name__)

ACTOR = "pod-watch"
# The ledger usually knows the state of a usual pod already: many are compared together, each when
# it has not changed for one to two times this long. Rows that are written by then do not differ.
COMPARE_INTERVAL_S = 0.5
COMPARE_BATCH_SIZE = 500
PLUGIN_FAILED = "the device plugin of its node could not allocate its cards (bind-phase failed)"


@dataclass(eq=False, kw_only=True)
class PodWatch:
    """Handlers of the pod informer, and their worker."""

    store: AllocationStore
    transitions: Transitions
    state: ClusterState
    waiting: WaitingPods
    request_of: Callable[[JsonMapping], PodRequest]
    scheduler_name: str
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _changed: dict[str, PodFacts] = field(default_factory=dict, init=False)
    """Facts of the pods in the queue."""
    _usual: dict[PodUid, PodFacts] = field(default_factory=dict, init=False)
    """Running pods that are not compared with the ledger yet."""
    _unchanged: dict[PodUid, PodFacts] = field(default_factory=dict, init=False)
    """Pods that have not changed since the last comparison."""
    _usual_came: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    by_uid: dict[PodUid, JsonMapping] = field(default_factory=dict, init=False)
    """All pods of ours at the API server."""

    def __post_init__(self) -> None:
        self.queue = WorkQueue("pod-changes", self._sync, self.bulkhead, self.clock)

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """Handle a new or changed pod."""
        uid = PodUid(new["metadata"]["uid"])
        if not self._ours(new):
            return
        self.by_uid[uid] = new
        facts = facts_of(new)
        self._keep_waiting(new, facts)
        self._forget_if_over(new, facts)
        before = None if old is None else facts_of(old)
        # The ledger can't have anything yet about a fresh pod.
        is_fresh = before is None and not facts.node and facts.phase not in TERMINAL_PHASES
        if facts != before and not is_fresh:
            self._note(facts)

    def on_delete(self, pod: JsonMapping) -> None:
        """Handle a deleted pod."""
        uid = PodUid(pod["metadata"]["uid"])
        self.waiting.remove(uid)
        self.state.forget(uid, Forgotten.POD_GONE)
        if self.by_uid.pop(uid, None) is not None:
            self._note(PodFacts(uid=uid, exists=False, node=facts_of(pod).node))

    def _forget_if_over(self, pod: JsonMapping, facts: PodFacts) -> None:
        """Drop the assumption of a pod that will not reach /bind any more."""
        assumed = self.state.assumption(facts.uid)
        if assumed is None:
            return
        node = assumed.draft.placement.node
        if facts.phase in TERMINAL_PHASES:
            self.state.forget(facts.uid, Forgotten.POD_ENDED)
        elif facts.node is not None and facts.node != node:
            self.state.forget(facts.uid, Forgotten.BOUND_ELSEWHERE)
        elif (pod.get("spec") or {}).get("schedulingGates"):
            self.state.forget(facts.uid, Forgotten.GATED)
        elif self.waiting.is_given_up_since(pod):
            self.state.forget(facts.uid, Forgotten.GIVEN_UP)
        elif self.waiting.is_nominated_since(pod, node):
            self.state.wait_for_bind(facts.uid)

    def _ours(self, pod: JsonMapping) -> bool:
        spec = pod.get("spec") or {}
        by_us = spec.get("schedulerName") == self.scheduler_name
        return by_us or ASSIGNED_NODE in annotations_of(pod)

    def _keep_waiting(self, pod: JsonMapping, facts: PodFacts) -> None:
        refused = scheduled_verdict(pod)[:1] == ("False",)
        if facts.node or facts.deleting or facts.phase in TERMINAL_PHASES:
            self.waiting.remove(facts.uid)
            return
        if refused:
            try:
                request = self.request_of(pod)
            except InvalidRequest:
                return
            if request.wants_devices:
                self.waiting.add(
                    WaitingPod(
                        uid=facts.uid,
                        namespace=request.namespace,
                        name=request.name,
                        created_at=str(pod["metadata"].get("creationTimestamp", "")),
                        priority=int((pod.get("spec") or {}).get("priority") or 0),
                        request=request,
                    )
                )

    def _note(self, facts: PodFacts) -> None:
        if _usual(facts) and facts.uid not in self.queue:
            self._unchanged.pop(facts.uid, None)
            self._usual[facts.uid] = facts
            self._usual_came.set()
            return
        self._usual.pop(facts.uid, None)
        self._unchanged.pop(facts.uid, None)
        self._changed[facts.uid] = facts
        self.queue.add(facts.uid)

    async def run_comparisons(self) -> None:
        """Compare running pods with the ledger, in batches, until cancelled."""
        while True:
            await self._usual_came.wait()
            await asyncio.sleep(COMPARE_INTERVAL_S)
            await self.compare()
            if not self._usual and not self._unchanged:
                self._usual_came.clear()

    async def compare(self) -> None:
        """Queue running pods whose rows in the ledger differ from their objects.

        Pods that the watch reported since the last call are compared in the next one.
        """
        usual, self._unchanged, self._usual = self._unchanged, self._usual, {}
        uids = list(usual)
        different: set[PodUid] = set()
        for first in range(0, len(uids), COMPARE_BATCH_SIZE):
            some = uids[first : first + COMPARE_BATCH_SIZE]
            try:
                rows = await self.store.standing_of(some)
            except HamiError as exc:
                # Then each one separately, with pauses.
                logger.warning(
                    "Failed to compare pods with the ledger; comparing them one by one",
                    extra={"error": clip(str(exc))},
                )
                different.update(some)
                continue
            different.update(row.pod_uid for row in rows if _differs(row, usual[row.pod_uid]))
        for uid in different:
            if uid not in self.queue and uid not in self._usual and uid not in self._unchanged:
                self._changed[uid] = usual[uid]
                self.queue.add(uid)

    async def _sync(self, uid: str) -> None:
        facts = self._changed.get(uid)
        if facts is None:
            return
        await self.look(facts)
        if self._changed.get(uid) is facts:  # otherwise it changed since, and is in the queue
            del self._changed[uid]

    async def look(self, facts: PodFacts) -> bool:
        """Take the step that the facts require; return whether there was one.

        Raises: Conflict, Unavailable.
        """
        done = False
        # A step may make another one due (binding -> bound -> allocated).
        for _ in range(3):
            allocation = await self.store.live_of(facts.uid)
            if allocation is None:
                break
            step = verdict(allocation, facts)
            if step is None:
                if plugin_failed(allocation, facts):
                    await self.transitions.note_failure(allocation, PLUGIN_FAILED, actor=ACTOR)
                elif facts.started:
                    await self.transitions.locks.release(allocation)
                break
            await self.transitions.apply(allocation, step, actor=ACTOR)
            done = True
        return done


def _usual(facts: PodFacts) -> bool:
    """Return whether the pod is bound, and neither ended nor being deleted."""
    lives = facts.exists and facts.phase not in TERMINAL_PHASES and not facts.deleting
    return lives and facts.node is not None and not facts.bind_phase


def _differs(allocation: Allocation, facts: PodFacts) -> bool:
    """Return whether the pod's facts may change its allocation; `look` decides by the whole row."""
    # Who reported `allocated` has freed the lock.
    holds_lock = facts.started and allocation.state is not AllocationState.ALLOCATED
    return holds_lock or verdict(allocation, facts) is not None
