"""How an allocation goes on after the binding, and how it ends: the steps that verdicts demand.

`apply` turns a `Transition` into a guarded change of state with all that hangs on it: the view, the
node's lock, the withdrawal at the node, and the retry of pods that wait. The two steps that every
pod makes, `bound` and `allocated`, go with those of other pods in one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from hamicommon import telemetry
from hamicommon.domain.allocations import LIVE_STATES, Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.ledger.model import Change, StateStep
from hamicommon.process.batches import Batches
from opentelemetry import trace

from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.state_machine import Transition
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import ALLOCATE_FAILED, Announcer
from hami_scheduler.ports import AllocationStore, GrantAnnouncer

logger = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)

# What nobody waits for is written with what comes within this time. A pod that gets its cards at
# once is bound and allocated in one batch.
GATHER_S = 0.05
# In a burst fewer and larger batches: both steps of a pod are mostly one change of its row then.
PACE_S = 0.3

_KEEPS_SLICES = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})
_LOCK_ENDS_AT = frozenset({AllocationState.ALLOCATED, AllocationState.RELEASING})


class Transitions:
    """Changes states after the binding."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        locks: NodeLocks,
        announcer: Announcer,
        grants: GrantAnnouncer,
        view: LedgerSnapshotCache,
        instruments: SchedulerInstruments,
        release_unconfirmed_s: float,
        on_freed: Callable[[], None],
    ) -> None:
        self._store = store
        self._locks = locks
        self._announcer = announcer
        self._grants = grants
        self._view = view
        self._instruments = instruments
        self._release_unconfirmed_s = release_unconfirmed_s
        self._on_freed = on_freed
        self._steps = Batches[StateStep, bool](
            store.advance_all,
            key=lambda step: (step.allocation_id, step.target),
            gather_s=GATHER_S,
            pace_s=PACE_S,
        )

        self.before_end: Callable[[Allocation], Awaitable[None]] | None = None
        """Called before a grant ends, which waits for it. Raises: Unavailable."""
        self._bound_here: dict[AllocationId, int | None] = {}
        """Tokens of what is bound, and not written down yet."""

    async def run(self) -> None:
        """Writes what goes in batches, until cancelled."""
        await self._steps.run()

    def is_bound(self, allocation_id: AllocationId, token: int) -> bool:
        """Whether this replica has bound the pod, and writes that down now."""
        return self._bound_here.get(allocation_id) == token

    def bound(self, allocation: Allocation, *, actor: str) -> None:
        """The pod is on its node: `binding -> bound` is written soon, and nobody waits for it.

        What is lost on the way (a kill, a ledger that is away) the pod watch and the reaper find in
        the pod itself. The steps of one allocation are written in the order of these calls.
        """
        step = StateStep(
            allocation_id=allocation.id,
            sources=frozenset({AllocationState.BINDING}),
            target=AllocationState.BOUND,
            actor=actor,
            token=allocation.token,
        )
        self._bound_here[allocation.id] = allocation.token
        self._steps.put(step).add_done_callback(partial(self._bound, allocation))

    def _bound(self, allocation: Allocation, done: asyncio.Future[bool]) -> None:
        self._bound_here.pop(allocation.id, None)
        if done.cancelled():
            return
        about = {"pod_uid": allocation.pod_uid, "node": allocation.node}
        if (exc := done.exception()) is not None:
            logger.warning("binding not written yet", extra={**about, "error": str(exc)})
        elif done.result():
            self._note(AllocationState.BOUND, about)
        else:
            # Written by another binder, or by who found it bound; the reconciler finds what is not.
            logger.info("binding not written by its binder", extra=about)

    async def allocated(
        self,
        allocation_id: AllocationId,
        *,
        node: NodeName,
        token: int,
        actor: str,
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """The node has answered for the pod: `bound -> allocated`, with others; False when that is
        not the step that is due.

        `about`: what the log's line has beside it. Raises: Conflict, Unavailable.
        """
        step = StateStep(
            allocation_id=allocation_id,
            sources=frozenset({AllocationState.BOUND}),
            target=AllocationState.ALLOCATED,
            actor=actor,
            token=token,
            node=node,
        )
        done = await self._steps.put(step)
        if done:
            named = {**about, "allocation_id": allocation_id, "node": node}
            self._note(AllocationState.ALLOCATED, named)
        return done

    def _note(self, target: AllocationState, about: dict[str, str]) -> None:
        self._instruments.transitions.labels(target.value).inc()
        logger.info("allocation changed", extra={**about, "to": target})

    async def apply(
        self, allocation: Allocation, verdict: Transition, *, actor: str, token: int | None = None
    ) -> Change | None:
        """Does the step if the row is still as `allocation` has it; None when it is not.

        Raises: Conflict, Unavailable.
        """
        releasing = verdict.target is AllocationState.RELEASING
        step = StateStep(
            allocation_id=allocation.id,
            sources=frozenset({allocation.state}),
            target=verdict.target,
            reason=verdict.reason,
            actor=actor,
            token=token,
            lease_s=self._release_unconfirmed_s if releasing else None,
        )
        if verdict.target in LIVE_STATES:
            change = await self._store.advance(step)
        else:
            if self.before_end is not None:
                await self.before_end(allocation)
            with tracer.start_as_current_span(
                "release",
                context=telemetry.extract({"traceparent": allocation.traceparent}),
                attributes={
                    **telemetry.pod_attributes(
                        uid=allocation.pod_uid,
                        namespace=allocation.namespace,
                        name=allocation.pod_name,
                    ),
                    "hami.reason": verdict.reason,
                },
            ):
                change = await self._store.advance(step)
        if change is None:
            return None
        logger.info(
            "allocation changed",
            extra={
                "pod_uid": allocation.pod_uid,
                "pod": f"{allocation.namespace}/{allocation.pod_name}",
                "node": allocation.node,
                "from": allocation.state,
                "to": verdict.target,
                "reason": verdict.reason,
            },
        )
        await self._after(allocation, change, verdict)
        return change

    async def _after(self, allocation: Allocation, change: Change, verdict: Transition) -> None:
        self._view.apply(change.counters)
        self._instruments.transitions.labels(verdict.target.value).inc()
        ended = verdict.target not in LIVE_STATES
        if allocation.token is not None and (ended or verdict.target in _LOCK_ENDS_AT):
            await self.free_lock(allocation)
            # A node keeps a releasing grant: it is the one to report that the pod left.
            if ended and allocation.has_agent:
                await self._withdraw(allocation, verdict.reason)
        if ended:
            self._on_freed()

    async def free_lock(self, allocation: Allocation) -> None:
        """Frees the node's lock if this allocation holds it; it ends by itself anyway."""
        await self._locks.release(allocation)

    async def free_token(self, node: NodeName, token: int) -> None:
        """The same, of a node with an agent."""
        await self._locks.release_token(node, token)

    async def note_failure(self, allocation: Allocation, reason: str, *, actor: str) -> None:
        """The node could not give the pod its cards: shown, kept with the row, the lock freed.

        The slices stay until the pod is over: another container of it may be running.
        Raises: Conflict, Unavailable.
        """
        if allocation.reason != reason:
            self._announcer.announce(
                PodRef.of(allocation),
                ALLOCATE_FAILED,
                reason,
            )
            await self._store.advance(
                StateStep(
                    allocation_id=allocation.id,
                    sources=_KEEPS_SLICES & {allocation.state},
                    target=allocation.state,
                    reason=reason,
                    actor=actor,
                    token=allocation.token,
                )
            )
        await self.free_lock(allocation)

    async def _withdraw(self, allocation: Allocation, reason: str) -> None:
        try:
            await self._grants.withdrawn(allocation, reason)
        except Unavailable as exc:
            logger.warning("grant not withdrawn on the bus", extra={"error": str(exc)})
