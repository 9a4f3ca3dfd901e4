"""Implement /bind: turn an assumed placement into a bound pod, whose node has the grant first.

begin the binding in the ledger -> node lock (only if the node needs one) -> offer to the agent ->
`pods/binding` with the annotations and the signed grant -> mark it bound; and one rollback. The
grant and its fencing token are in the ledger before anything outside this process acts on it, so
another scheduler can finish or undo the binding. `bind_steps.py` has the steps at the API server;
`bus/reports.py` receives the node-agent's report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState, Origin
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, HamiError, NotFound, Unavailable
from hamicommon.grants.grant import Grant, grant_of
from hamicommon.ledger.model import Change, Draft, StateStep
from hamicommon.process.best_effort import log_failure
from opentelemetry.trace import get_tracer

from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.extender.bind_steps import AgentOffers, AnswerUnknown, PodBinding
from hami_scheduler.extender.protocol import BindArgs
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.state_machine import Transition
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.ledger.writer import LedgerWriter
from hami_scheduler.pod_events import BINDING_FAILED, BINDING_SUCCEED, Outcomes
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)
tracer = get_tracer(__name__)

ACTOR = "scheduler"
ANSWER_MARGIN_S = 5.0
"""Time before kube-scheduler's time-out at which /bind answers at the latest."""
BINDING_EXTRA_S = 30.0
"""Time for the steps after the lock: annotations, binding, reading back, 10 s each at most."""
TOKEN_TTL_S = 1.0
"""Age from which a fencing token is checked again before the pod is bound.

A second binder may have taken the grant over; within this time the API server keeps two binders
apart.
"""
MAX_ERROR_LENGTH = 1024
"""Maximum characters of an error, as in events."""
_BOUND = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})
# `reserved` is of rows that the previous release wrote.
_RESUMABLE = frozenset({AllocationState.BINDING, AllocationState.RESERVED})

PlaceOnNode = Callable[[BindArgs], Awaitable[Draft | Allocation | None]]
"""Function that places a pod without an assumption on the node.

Returns the draft of its grant, or the grant of its ResourceClaims in state `binding`; None if it
asks for no device.
"""


class _BeginResult(NamedTuple):
    allocation: Allocation
    taken_over: bool = False
    """Whether another binder, which may have bound the pod, began it."""


@dataclass(eq=False, kw_only=True)
class Bind:
    """Use case of /bind.

    `timeout_s`: how long kube-scheduler waits for the answer.
    """

    state: ClusterState
    store: AllocationStore
    writer: LedgerWriter
    begin_grant: Callable[[Draft], Awaitable[Change]]
    """Function that writes the grant, for a group's member together with the others."""
    on_ended: Callable[[PodUid], None]
    """Function called when a binding fails after its grant was written."""
    place_on_node: PlaceOnNode
    locks: NodeLocks
    pod: PodBinding
    offers: AgentOffers
    transitions: Transitions
    background: BackgroundQueue
    outcomes: Outcomes
    timeout_s: float

    async def bind(self, args: BindArgs) -> str:
        """Bind the pod; return an empty text, or the error."""
        started = time.perf_counter()
        error = ""
        try:
            await self._bind(args, deadline=started + self.timeout_s - ANSWER_MARGIN_S)
        except HamiError as exc:
            error = clip(str(exc), MAX_ERROR_LENGTH)
            self.outcomes.announcer.announce(args.pod, BINDING_FAILED, error)
            left_out = self.outcomes.log_limit.take(args.pod.uid, error)
            if left_out is not None:
                extra = {"pod_uid": args.pod.uid, "node": args.node}
                extra |= {"error": error, "left_out": str(left_out)}
                logger.warning("Failed to bind the pod", extra=extra)
        outcome = "failed" if error else "bound"
        spent_s = time.perf_counter() - started
        self.outcomes.instruments.bind_seconds.labels(outcome).observe(spent_s)
        return error

    async def _bind(self, args: BindArgs, *, deadline: float) -> None:
        begun = await self._begin(args)
        if begun is None:
            await self._bind_without_devices(args)
            return
        allocation = begun.allocation
        if allocation.state is not AllocationState.BINDING:
            # By the row the pod is bound; if it is, this is a success.
            if not await self.pod.is_bound(allocation):
                await self.pod.post(allocation, grant_of(allocation))
            return
        context = telemetry.extract({"traceparent": allocation.traceparent})
        attributes = _attributes(args)
        with telemetry.current_span(tracer, "bind", context=context, attributes=attributes):
            try:
                await self._carry_out(allocation, deadline)
            except AnswerUnknown:
                raise
            except HamiError as exc:
                if not await self._roll_back(begun, str(exc)):
                    raise
        self._announce_bound(args, allocation)

    async def _carry_out(self, allocation: Allocation, deadline: float) -> None:
        """Lock the node, offer the grant, bind the pod, and mark it bound."""
        began, grant = time.perf_counter(), grant_of(allocation)
        if allocation.origin is not Origin.CLAIM:
            # Claims are prepared by name: no Allocate comes, in no order.
            await self._offer(allocation, grant, deadline)
        if time.perf_counter() - began > TOKEN_TTL_S:
            await self._check_token(allocation)
        with telemetry.current_span(tracer, "mirror"):
            is_bound_here = await self.pod.post(allocation, grant)
        if is_bound_here:
            self.transitions.mark_bound(allocation, actor=ACTOR)
        else:
            await self._note_bound(allocation)
        if labels := self.outcomes.marks.labels(allocation):
            self.background.put(partial(self.pod.label, allocation, labels))

    # Begin

    async def _begin(self, args: BindArgs) -> _BeginResult | None:
        """Return the pod's grant in state `binding` with a new token.

        As it is, if the pod is bound on the node already by its row; None for a pod without
        devices.

        Raises: Conflict, NotFound, Unschedulable, Unavailable.
        """
        uid, node = args.pod.uid, args.node
        assumed = self.state.assumption(uid)
        if assumed is not None and assumed.draft.placement.node == node:
            draft = assumed.draft
            self.state.wait_for_bind(uid, self.timeout_s)
        else:
            # Of a scheduler before this one, or placed past /filter.
            live = await self.store.live_of(uid)
            if live is not None:
                return await self._resume(live, node)
            placed = await self.place_on_node(args)
            if placed is None or isinstance(placed, Allocation):
                return None if placed is None else _BeginResult(placed)
            draft = placed
        try:
            change = await self.begin_grant(draft)
        except CapacityConflict:
            await self._reread(node)
            raise
        except Conflict:
            live = await self.store.live_of(uid)
            if live is None:
                raise
            return await self._resume(live, node)
        self._count_binding()
        return _BeginResult(change.allocation)

    async def _resume(self, live: Allocation, node: NodeName) -> _BeginResult:
        """Take over a grant that is already in the ledger. Raises: Conflict, Unavailable."""
        if live.node == node and live.state in _BOUND:
            return _BeginResult(live)
        if live.node != node or live.state not in _RESUMABLE:
            if live.state in _RESUMABLE:
                self.state.note_binding(live.pod_uid, live.node)
            raise Conflict(f"the pod is {live.state} on node {live.node}, not on {node}")
        lease_s = self.timeout_s + BINDING_EXTRA_S
        step = StateStep.of(
            live, AllocationState.BINDING, actor=ACTOR, new_token=True, lease_s=lease_s
        )
        change = await self.writer.advance(step)
        if change is None:
            raise Conflict(f"the grant of pod {live.pod_uid} changed while it was taken over")
        self._count_binding()
        return _BeginResult(change.allocation, taken_over=live.state is AllocationState.BINDING)

    async def _reread(self, node: NodeName) -> None:
        """Read the node again after the ledger refused a placement that the state allowed."""
        self.state.doubt(node)
        with log_failure(logger, "Failed to reread the ledger after it refused a placement"):
            await self.state.refresh()

    def _count_binding(self) -> None:
        self.outcomes.instruments.transitions.labels(AllocationState.BINDING.value).inc()

    # Lock and offer

    async def _offer(self, allocation: Allocation, grant: Grant, deadline: float) -> None:
        node, locks = allocation.node, self.locks
        if allocation.has_agent and not locks.is_known(node):
            binds_late = await self.offers.binds_late(node)
            if binds_late is not None:
                locks.note(node, binds_late=binds_late)
        is_locked = locks.is_required(allocation)
        if is_locked:
            await self._acquire_lock(allocation, deadline)
        if not allocation.has_agent:
            return
        binds_late = await self.offers.offer(grant, node)
        if binds_late is None:
            return
        if binds_late and is_locked:
            # On other nodes the agent's report frees it.
            await locks.release(allocation)
        locks.note(node, binds_late=binds_late)
        if not binds_late and not is_locked:
            await self._acquire_lock(allocation, deadline)

    async def _acquire_lock(self, allocation: Allocation, deadline: float) -> None:
        started = time.perf_counter()
        with telemetry.current_span(tracer, "lock"):
            await self.locks.acquire(allocation, deadline=deadline)
        self.outcomes.instruments.lock_wait_seconds.observe(time.perf_counter() - started)

    # Roll back

    async def _check_token(self, allocation: Allocation) -> None:
        """Check the token. Raises: Conflict if another binder has a newer one, Unavailable."""
        row = await self.store.get(allocation.id)
        if row is None or row.state is not AllocationState.BINDING or row.token != allocation.token:
            # Also if it is bound now: the rollback reads the pod itself.
            now = "gone" if row is None else f"{row.state} with token {row.token}"
            raise Conflict(
                f"the grant of pod {allocation.pod_uid} was taken over while it was bound: {now}"
            )

    async def _roll_back(self, begun: _BeginResult, reason: str) -> bool:
        """End the grant of a failed binding.

        True, and nothing is ended, if the pod is on the node anyway.

        Raises: AnswerUnknown if that can't be found out: the grant then stays until its node's
        report or its deadline.
        """
        allocation = begun.allocation
        try:
            bound = await self.pod.is_bound(allocation)
        except NotFound as exc:
            if begun.taken_over:
                # The other binder may have bound the pod before it went: it may run there.
                raise AnswerUnknown(
                    f"{exc}; a report of its node will show whether it was bound"
                ) from exc
            bound = False
        except Unavailable as exc:
            raise AnswerUnknown(f"the pod can't be read, so its grant is kept: {exc}") from exc
        if bound:
            await self._note_bound(allocation)
        else:
            await self._end(allocation, reason)
        return bound

    async def _note_bound(self, allocation: Allocation) -> None:
        """Mark a pod bound that was found bound. Raises: Unavailable."""
        self.transitions.mark_bound(allocation, actor=ACTOR)
        row = await self.store.get(allocation.id)
        if row is None or row.token != allocation.token or row.state is AllocationState.ALLOCATED:
            # Another binder was first, and no report comes that would free this lock.
            await self.transitions.locks.release(allocation)

    async def _end(self, allocation: Allocation, reason: str) -> None:
        self.on_ended(allocation.pod_uid)
        verdict = Transition(target=AllocationState.FAILED, reason=reason)
        token = allocation.token
        try:
            if await self.transitions.apply(allocation, verdict, actor=ACTOR, token=token) is None:
                # The watch saw the pod go first; only this call knows that it got no node.
                seen = replace(allocation, state=AllocationState.RELEASING)
                verdict = Transition(target=AllocationState.RELEASED, reason=reason)
                ended = await self.transitions.apply(seen, verdict, actor=ACTOR, token=token)
                if ended is None:
                    # Another binder has the grant under its own token; this offer and this lock
                    # are not its.
                    await self.transitions.withdraw(allocation, reason)
        except HamiError as exc:
            # The deadline of `binding` ends it.
            logger.warning("Failed to record the failed binding", extra={"error": str(exc)})
            await self.transitions.withdraw(allocation, reason)

    # Pods without devices, and events

    async def _bind_without_devices(self, args: BindArgs) -> None:
        """Bind a pod that names our resources but asks for none of them.

        kube-scheduler sends it here only for the names (`managedResources`).
        """
        with tracer.start_as_current_span("bind", attributes=_attributes(args)):
            await self.pod.post_plain(args.pod, args.node)
        self._announce_bound(args, None)

    def _announce_bound(self, args: BindArgs, allocation: Allocation | None) -> None:
        if not self.outcomes.marks.shows_success(allocation):
            return
        text = f"Successfully binding node [{args.node}] to {args.pod.namespace}/{args.pod.name}"
        self.outcomes.announcer.announce(args.pod, BINDING_SUCCEED, text, warning=False)


def _attributes(args: BindArgs) -> dict[str, str]:
    pod = telemetry.pod_attributes(args.pod.namespace, args.pod.name, args.pod.uid)
    return {**pod, "k8s.node.name": args.node}
