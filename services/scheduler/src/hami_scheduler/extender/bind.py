"""/bind: from a reservation to a pod that is bound, with its grant at the node first.

Order: token (ledger), node lock where the node wants one, the grant to its agent with the question
whether it can take the pod, `pods/binding` with the annotations and the signed grant in it;
`bound` is written behind the answer. The row is asked for again where the way here took long.
Everything is read from the ledger, so any replica may do it, and again (`binding_claims.py`). The
node-agent goes on with the grant (`agent_offers.py`); what it reports comes to `bus/reports.py`.
`pod_binding.py` has what is done to the pod at the API server.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from hamicommon import telemetry
from hamicommon.clipping import clip
from hamicommon.domain.allocate_order import AllocateOrder
from hamicommon.domain.allocations import Allocation, AllocationState, Origin
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.grants.grant import Grant, grant_of
from opentelemetry.trace import get_tracer

from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.extender.agent_offers import AgentOffers
from hami_scheduler.extender.binding_claims import ACTOR, BindingClaims, NoCards
from hami_scheduler.extender.outcomes import Outcomes
from hami_scheduler.extender.pod_binding import AnswerUnknown, PodBinding
from hami_scheduler.extender.protocol import BindArgs
from hami_scheduler.ledger.node_locks import NodeLocks
from hami_scheduler.ledger.state_machine import Transition
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.pod_events import BINDING_FAILED, BINDING_SUCCEED

logger = logging.getLogger(__name__)
tracer = get_tracer(__name__)

# kube-scheduler gives a call up at its time-out; we answer this much earlier.
ANSWER_MARGIN_S = 5.0
# Within this nobody takes a fresh token over but a second binder, whom the API server keeps apart
# from the first; the reaper comes after `timeout_s`.
FRESH_S = 1.0
# The signed form is for nodes that can't reach the bus, soon after the binding.
SIGNED_GRANT_S = 600.0
# As much as an event shows; whom we quote (the API server) may quote much.
MOST_OF_AN_ERROR = 1024


class Bind:
    """The use case of /bind."""

    def __init__(
        self,
        *,
        claims: BindingClaims,
        locks: NodeLocks,
        pod: PodBinding,
        offers: AgentOffers,
        transitions: Transitions,
        deferred: DeferredWrites,
        outcomes: Outcomes,
        timeout_s: float,
    ) -> None:
        """`timeout_s`: as long as kube-scheduler waits for the answer."""
        self._claims = claims
        self._locks = locks
        self._pod = pod
        self._offers = offers
        self._transitions = transitions
        self._deferred = deferred
        self._outcomes = outcomes
        self._timeout_s = timeout_s

    async def bind(self, args: BindArgs) -> str:
        """Answers /bind: the empty string, or what went wrong."""
        started = time.perf_counter()
        error = ""
        try:
            await self._bind(args, deadline=started + self._timeout_s - ANSWER_MARGIN_S)
        except HamiError as exc:
            error = clip(str(exc), MOST_OF_AN_ERROR)
            self._outcomes.announcer.announce(_pod_ref(args), BINDING_FAILED, error)
            left_out = self._outcomes.lines.spend(PodUid(args.pod_uid), error)
            if left_out is not None:
                logger.warning(
                    "binding failed",
                    extra={
                        "pod_uid": args.pod_uid,
                        "node": args.node,
                        "error": error,
                        "left_out": left_out,
                    },
                )
        outcome = "failed" if error else "bound"
        spent_s = time.perf_counter() - started
        self._outcomes.later(partial(self._measure, outcome, spent_s))
        return error

    def _measure(self, outcome: str, spent_s: float) -> None:
        self._outcomes.instruments.bind_seconds.labels(outcome).observe(spent_s)

    async def _bind(self, args: BindArgs, *, deadline: float) -> None:
        try:
            allocation, taken_over = await self._claims.claim(args)
        except NoCards:
            await self._bind_plainly(args)
            return
        if allocation.state is not AllocationState.BINDING:
            # By the row the pod is bound; if it is, this is a success.
            if not await self._pod.is_bound(allocation):
                await self._pod.post(allocation, _grant(allocation))
            return
        with telemetry.current_span(
            tracer,
            "bind",
            context=telemetry.extract({"traceparent": allocation.traceparent}),
            attributes={
                **telemetry.pod_attributes(
                    uid=allocation.pod_uid,
                    namespace=allocation.namespace,
                    name=allocation.pod_name,
                ),
                "k8s.node.name": allocation.node,
            },
        ):
            try:
                await self._bind_claimed(allocation, deadline)
            except AnswerUnknown:
                raise
            except HamiError as exc:
                if not await self._bound_after_all(allocation, taken_over=taken_over):
                    await self._give_up(allocation, str(exc))
                    raise
        self._announce_bound(args, allocation)

    async def _bind_plainly(self, args: BindArgs) -> None:
        """Binds a pod that names resources of ours and asks for none of them.

        kube-scheduler sends it here for the names alone (`managedResources`).
        """
        with tracer.start_as_current_span(
            "bind",
            attributes={
                **telemetry.pod_attributes(
                    uid=args.pod_uid, namespace=args.pod_namespace, name=args.pod_name
                ),
                "k8s.node.name": args.node,
            },
        ):
            await self._pod.post_plain(
                args.pod_namespace,
                args.pod_name,
                uid=PodUid(args.pod_uid),
                node=NodeName(args.node),
            )
        self._announce_bound(args, None)

    async def _bind_claimed(self, allocation: Allocation, deadline: float) -> None:
        claimed_at, grant = time.perf_counter(), _grant(allocation)
        if allocation.origin is not Origin.CLAIM:
            # Claims are prepared by name: no Allocate comes, in no order.
            await self._offer(allocation, grant, deadline)
        if time.perf_counter() - claimed_at > FRESH_S:
            await self._claims.check(allocation)
        with telemetry.current_span(tracer, "mirror"):
            await self._pod.post(allocation, grant)
        self._transitions.bound(allocation, actor=ACTOR)
        if labels := self._outcomes.marks.labels(allocation):
            self._deferred.put(partial(self._pod.label, allocation, labels))

    async def _offer(self, allocation: Allocation, grant: Grant, deadline: float) -> None:
        if allocation.has_agent and not self._locks.knows(allocation.node):
            # Else all that come there at this moment would wait for each other's Allocate.
            order = await self._offers.order(allocation.node)
            if order is not None:
                self._locks.note_order(allocation.node, order)
        locked = self._locks.wanted(allocation)
        if locked:
            await self._acquire_lock(allocation, deadline)
        if allocation.has_agent:
            order = await self._offers.offer(grant, allocation.node)
            late = order is AllocateOrder.ANY
            if late and locked:
                # Elsewhere the node's report frees it.
                await self._transitions.free_lock(allocation)
            self._locks.note_order(allocation.node, order)
            if not late and not locked:
                await self._acquire_lock(allocation, deadline)

    async def _acquire_lock(self, allocation: Allocation, deadline: float) -> None:
        started = time.perf_counter()
        with telemetry.current_span(tracer, "lock"):
            await self._locks.acquire(allocation, deadline=deadline)
        self._outcomes.instruments.lock_wait_seconds.observe(time.perf_counter() - started)

    async def _bound_after_all(self, allocation: Allocation, *, taken_over: bool) -> bool:
        """True when the pod is on the node all the same, through a binder that we took over from.

        Raises: AnswerUnknown when that can't be found out; the grant then stays until its node's
        report or its deadline.
        """
        try:
            bound = await self._pod.is_bound(allocation)
        except NotFound as exc:
            if taken_over:
                # The other binder may have got it through before the pod went: it may run there.
                raise AnswerUnknown(f"{exc}; its node shows whether it had been bound") from exc
            return False
        except Unavailable as exc:
            raise AnswerUnknown(f"the pod can't be read, so its grant stays: {exc}") from exc
        if bound:
            self._transitions.bound(allocation, actor=ACTOR)
        return bound

    async def _give_up(self, allocation: Allocation, reason: str) -> None:
        verdict = Transition(target=AllocationState.FAILED, reason=reason)
        token = allocation.token
        try:
            if await self._transitions.apply(allocation, verdict, actor=ACTOR, token=token) is None:
                # The watch saw the pod go first; that it got no node is known here alone.
                seen = replace(allocation, state=AllocationState.RELEASING)
                verdict = Transition(target=AllocationState.RELEASED, reason=reason)
                await self._transitions.apply(seen, verdict, actor=ACTOR, token=token)
        except HamiError as exc:
            # The deadline of `binding` ends it.
            logger.warning("failed binding not written down", extra={"error": str(exc)})
            await self._transitions.free_lock(allocation)

    def _announce_bound(self, args: BindArgs, allocation: Allocation | None) -> None:
        if not self._outcomes.marks.shows_success(allocation):
            return
        text = f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}"
        self._outcomes.announcer.announce(_pod_ref(args), BINDING_SUCCEED, text, warning=False)


def _pod_ref(args: BindArgs) -> PodRef:
    return PodRef(args.pod_namespace, args.pod_name, PodUid(args.pod_uid))


def _grant(allocation: Allocation) -> Grant:
    return grant_of(allocation, expires_at=datetime.now(UTC) + timedelta(seconds=SIGNED_GRANT_S))
