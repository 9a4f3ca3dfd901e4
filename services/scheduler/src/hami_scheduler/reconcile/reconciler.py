"""Compare ledger, pods and nodes, and end what is past its deadline.

`Reconciler.once` compares every live allocation with the facts of its pod and takes the step of the
verdict, as the pod watch would have. If none is due, it compares the pod's annotations
(`pod_annotations.py`). Each difference is counted and journalled. `Reaper.once` ends allocations
past their deadline. All replicas may do both concurrently: every step is guarded by the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.best_effort import log_failure
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.bus.reports import pod_facts
from hami_scheduler.drift import Drift, subject_of
from hami_scheduler.ledger.state_machine import (
    TERMINAL_PHASES,
    PodFacts,
    facts_of,
    overdue,
    verdict,
)
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore
from hami_scheduler.reconcile.lying_rows import LyingRows
from hami_scheduler.reconcile.pod_annotations import Mirrors
from hami_scheduler.reconcile.ungranted_pods import UngrantedPods

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Reconciler:
    """Find and repair differences."""

    ledger: AllocationStore
    pods: PodApi
    transitions: Transitions
    mirrors: Mirrors
    drift: Drift
    instruments: SchedulerInstruments
    known_pods: Mapping[PodUid, JsonMapping]
    known_nodes: Container[str]
    ungranted: UngrantedPods
    rows: LyingRows

    async def once(self) -> int:
        """Compare once; return the number of differences. Raises: Unavailable."""
        # First of all: a row that lies about its pod would be given back.
        found = await self.rows.by_history()
        held: set[PodUid] = set()
        async for some in self.ledger.standing():
            whole = await self._whole(some)
            for allocation in some:
                held.add(allocation.pod_uid)
                with self._one(allocation.pod_uid):
                    found += await self._compare(allocation, whole.get(allocation.id))
        self.mirrors.keep(held)
        self.rows.next_round(held)
        for uid, pod in list(self.known_pods.items()):
            if uid not in held:
                with self._one(uid):
                    found += await self.ungranted.check(uid, pod)
        self.ungranted.keep(held, self.known_pods)
        return found

    @contextmanager
    def _one(self, uid: PodUid) -> Iterator[None]:
        """Compare one pod; a failure is retried and does not delay others."""
        failed = "Failed to reconcile, retrying in the next round"
        with (
            log_failure(logger, failed, but=Unavailable, level=logging.INFO, pod_uid=uid),
            self.instruments.bulkhead.item("reconcile", uid),
        ):
            yield

    async def _whole(self, some: Sequence[Allocation]) -> dict[AllocationId, Allocation]:
        """Read the complete rows of pods whose annotations must be compared."""
        due = [
            allocation.id
            for allocation in some
            if (pod := self.known_pods.get(allocation.pod_uid)) is not None
            and (self.rows.due(allocation, pod) | self.mirrors.due(allocation, pod))
        ]
        return {row.id: row for row in await self.ledger.whole(due)} if due else {}

    async def _compare(self, allocation: Allocation, row: Allocation | None) -> int:
        facts = await self._facts(allocation)
        step = verdict(allocation, facts)
        if step is None:
            pod = self.known_pods.get(allocation.pod_uid)
            if pod is None or row is None:
                return 0
            # The pod must not be made to agree with a row that lies.
            if await self.rows.check(row, pod):
                self.mirrors.doubt(row.pod_uid)
                return 1
            return await self.mirrors.check(row, pod) if self.mirrors.due(row, pod) else 0
        # It may lie since the round began, and one that lies about its pod would be given back.
        if await self.rows.put_back(allocation.id):
            return 1
        whole = await self.ledger.get(allocation.id)
        if whole is None or whole.state is not allocation.state:
            return 0
        change = await self.transitions.apply(whole, step, actor="reconciler")
        if change is None:
            return 0
        detail = f"{allocation.state} -> {step.target} on {allocation.node}: {step.reason}"
        kind = _class_of(allocation, facts)
        await self.drift.note(kind, subject_of(allocation), detail, repaired=True)
        return 1

    async def _facts(self, allocation: Allocation) -> PodFacts:
        pod = self.known_pods.get(allocation.pod_uid)
        # The watch may lag: that a pod is gone is asked for, never concluded.
        facts = facts_of(pod) if pod is not None else await pod_facts(self.pods, allocation)
        return replace(facts, node_exists=allocation.node in self.known_nodes)


@dataclass(eq=False, kw_only=True)
class Reaper:
    """End allocations past their deadline."""

    ledger: AllocationStore
    pods: PodApi
    transitions: Transitions
    agent_speaks: Callable[[NodeName], bool]
    rows: LyingRows
    bulkhead: Bulkhead = field(default_factory=Bulkhead)

    async def once(self) -> int:
        """Check once; return the number of changed allocations. Raises: Unavailable."""
        done = 0
        overdue = await self.ledger.overdue()
        if overdue and await self.rows.by_history():
            # A row that lies about its state is not at its end.
            overdue = await self.ledger.overdue()
        for allocation in overdue:
            uid, failed = allocation.pod_uid, "Failed to expire overdue allocations"
            # What holds one up is no reason to let the others hold their cards.
            with (
                log_failure(logger, f"{failed}, retrying in the next round", pod_uid=uid),
                self.bulkhead.item("reap", uid),
            ):
                done += await self._reap(allocation)
        return done

    async def _reap(self, allocation: Allocation) -> bool:
        facts = await pod_facts(self.pods, allocation)
        facts = replace(facts, agent_speaks=self.agent_speaks(allocation.node))
        step = overdue(allocation, facts)
        if step is None:
            return False
        return await self.transitions.apply(allocation, step, actor="reaper") is not None


def _class_of(allocation: Allocation, facts: PodFacts) -> str:
    if not facts.exists:
        return f"{allocation.state}-pod-gone"
    if facts.phase in TERMINAL_PHASES:
        return f"{allocation.state}-pod-over"
    return f"{allocation.state}-lags-pod"
