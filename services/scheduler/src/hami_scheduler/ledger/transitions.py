"""Change the states of allocations after the binding.

`apply` turns a `Transition` into a guarded change of state with its consequences: the node's lock,
the withdrawal at the node, and the retry of waiting pods. `mark_bound` waits a moment for the
node's report, so that most pods go from `binding` to `allocated` in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from hamicommon import telemetry
from hamicommon.domain.allocations import LIVE_STATES, Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.model import Change, StateStep
from hamicommon.process.best_effort import log_failure
from opentelemetry import trace

from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.state_machine import Transition
from hami_scheduler.ledger.writer import Answer, LedgerWriter
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import ALLOCATE_FAILED, Announcer
from hami_scheduler.ports.cluster import GrantAnnouncer

logger = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)

_KEEPS_SLICES = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})
_LOCK_ENDS_AT = frozenset({AllocationState.ALLOCATED, AllocationState.RELEASING})


class _BoundHere(NamedTuple):
    allocation: Allocation
    timer: asyncio.TimerHandle


@dataclass(eq=False, kw_only=True)
class Transitions:
    """Apply steps to allocations after the binding.

    `bound_delay_s`: how long `bound` waits for the node's report. A grant that is to end
    waits for `before_end`, which raises Unavailable.
    """

    writer: LedgerWriter
    locks: NodeLocks
    announcer: Announcer
    grants: GrantAnnouncer
    instruments: SchedulerInstruments
    release_unconfirmed_s: float
    bound_delay_s: float
    on_freed: Callable[[], None]
    before_end: Callable[[Allocation], Awaitable[None]] | None = None
    _bound_here: dict[AllocationId, _BoundHere] = field(init=False, default_factory=dict)
    """Allocations whose pod was bound here, until that is written."""

    def is_bound(self, allocation_id: AllocationId, token: int) -> bool:
        """Return whether this scheduler has bound the pod and not written it yet."""
        bound = self._bound_here.get(allocation_id)
        return bound is not None and bound.allocation.token == token

    def mark_bound(self, allocation: Allocation, *, actor: str) -> None:
        """Write `binding -> bound` soon, without or with `allocated`, in the background.

        If the write is lost (a kill, an unavailable ledger), the pod watch and the reaper find the
        binding in the pod itself.
        """
        write = partial(self._write_bound, allocation, actor)
        timer = asyncio.get_running_loop().call_later(self.bound_delay_s, write)
        self._bound_here[allocation.id] = _BoundHere(allocation, timer)

    def _write_bound(self, allocation: Allocation, actor: str) -> None:
        step = StateStep.of(allocation, AllocationState.BOUND, actor=actor)
        self.writer.submit(step).add_done_callback(partial(self._on_bound, allocation))

    def _on_bound(self, allocation: Allocation, done: asyncio.Future[Answer]) -> None:
        self._bound_here.pop(allocation.id, None)
        if done.cancelled():
            return
        about = {"pod_uid": allocation.pod_uid, "node": allocation.node}
        answer = done.result()
        if isinstance(answer, HamiError):
            logger.warning(
                "Failed to record the binding in the ledger", extra={**about, "error": str(answer)}
            )
        elif answer is not None:
            self._note(AllocationState.BOUND, about)
        else:
            # Written by another binder or by the watch; otherwise the reconciler finds it.
            logger.info("Recorded a binding that the /bind call had left unrecorded", extra=about)

    async def mark_allocated(
        self,
        allocation_id: AllocationId,
        *,
        node: NodeName,
        token: int,
        actor: str,
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Write that the node has answered for the pod; return False if that step is not due.

        `about`: further fields of the log's line. Raises: Conflict, Unavailable.
        """
        sources = {AllocationState.BOUND}
        if self.is_bound(allocation_id, token):
            bound = self._bound_here.pop(allocation_id)
            bound.timer.cancel()
            sources.add(AllocationState.BINDING)
        step = StateStep(
            allocation_id=allocation_id,
            sources=frozenset(sources),
            target=AllocationState.ALLOCATED,
            actor=actor,
            token=token,
            node=node,
        )
        done = await self.writer.advance(step) is not None
        if done:
            named = {**about, "allocation_id": allocation_id, "node": node}
            self._note(AllocationState.ALLOCATED, named)
        return done

    def _note(self, target: AllocationState, about: dict[str, str]) -> None:
        self.instruments.transitions.labels(target.value).inc()
        logger.info("Changed an allocation", extra={**about, "to": target})

    async def apply(
        self, allocation: Allocation, verdict: Transition, *, actor: str, token: int | None = None
    ) -> Change | None:
        """Apply the step if the row is unchanged; return None if it is not.

        Raises: Conflict, Unavailable.
        """
        releasing = verdict.target is AllocationState.RELEASING
        lease_s = self.release_unconfirmed_s if releasing else None
        about = {"reason": verdict.reason, "token": token, "lease_s": lease_s}
        step = StateStep.of(allocation, verdict.target, actor=actor, **about)
        if verdict.target in LIVE_STATES:
            change = await self.writer.advance(step)
        else:
            if self.before_end is not None:
                await self.before_end(allocation)
            context = telemetry.extract({"traceparent": allocation.traceparent})
            names = (allocation.namespace, allocation.pod_name, allocation.pod_uid)
            attributes = {**telemetry.pod_attributes(*names), "hami.reason": verdict.reason}
            with tracer.start_as_current_span("release", context=context, attributes=attributes):
                change = await self.writer.advance(step)
        if change is None:
            return None
        logger.info(
            "Changed an allocation",
            extra={
                "pod_uid": allocation.pod_uid,
                "pod": f"{allocation.namespace}/{allocation.pod_name}",
                "node": allocation.node,
                "from": allocation.state,
                "to": verdict.target,
                "reason": verdict.reason,
            },
        )
        await self._after(allocation, verdict)
        return change

    async def _after(self, allocation: Allocation, verdict: Transition) -> None:
        self.instruments.transitions.labels(verdict.target.value).inc()
        ended = verdict.target not in LIVE_STATES
        if ended:
            await self.withdraw(allocation, verdict.reason)
            self.on_freed()
        elif verdict.target in _LOCK_ENDS_AT:
            # The node keeps a releasing grant: it is the one to report that the pod left.
            await self.locks.release(allocation)

    async def withdraw(self, allocation: Allocation, reason: str) -> None:
        """Withdraw the grant with this token from its node, and free the lock.

        In this order: it must not be the answer to the pod that gets the lock next. A grant that
        another binder offered under a later token stays.
        """
        if allocation.token is None:
            return
        if allocation.has_agent:
            with log_failure(logger, "Failed to withdraw a grant on the bus", of=Unavailable):
                await self.grants.withdraw(allocation, reason)
        await self.locks.release(allocation)

    async def note_failure(self, allocation: Allocation, reason: str, *, actor: str) -> None:
        """Record and show that the node could not give the pod its cards, and free the lock.

        The slices stay until the pod is over: another container of it may be running.
        Raises: Conflict, Unavailable.
        """
        if allocation.reason != reason:
            self.announcer.announce(PodRef.of(allocation), ALLOCATE_FAILED, reason)
            await self.writer.advance(
                StateStep(
                    allocation_id=allocation.id,
                    sources=_KEEPS_SLICES & {allocation.state},
                    target=allocation.state,
                    reason=reason,
                    actor=actor,
                    token=allocation.token,
                )
            )
        await self.locks.release(allocation)
