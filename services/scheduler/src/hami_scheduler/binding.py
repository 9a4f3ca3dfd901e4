"""/bind: from a reservation to a pod that is bound, with its grant told to the node first.

Order: token (ledger), node lock, the agent's readiness, grant on the bus, the row once more,
`pods/binding` with the annotations and the signed grant in it, `bound`. Everything is read from the
ledger, so any replica may do it, and again. The node-agent goes on with the grant; what it reports
comes to `reports.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from hamicommon import telemetry
from hamicommon.db.ledger import LockHolder, Step
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.grants import Grant, grant_of
from hamicommon.k8s.annotations import (
    GRANT,
    annotations_of,
    binding_annotations,
    node_label,
)
from opentelemetry import trace

from hami_scheduler.announcing import BINDING_FAILED, BINDING_SUCCEED, Announcer
from hami_scheduler.aside import Aside
from hami_scheduler.domain.lifecycle import Verdict, facts_of
from hami_scheduler.extender import BindArgs
from hami_scheduler.instruments import Instruments
from hami_scheduler.mirrored_locks import MirroredLocks
from hami_scheduler.ports import (
    AgentNotReady,
    AllocationStore,
    GrantAnnouncer,
    Json,
    NodeLock,
    PodApi,
)
from hami_scheduler.releasing import Releasing

logger = logging.getLogger(__name__)
tracer = trace.get_tracer(__name__)

ACTOR = "scheduler"
# kube-scheduler gives a call up at its time-out; we answer this much earlier.
ANSWER_MARGIN_S = 5.0
# After the lock's longest wait: patch, binding and reading back, each at most 10 s.
BINDING_EXTRA_S = 30.0
# The signed form is for nodes that can't reach the bus, soon after the binding.
SIGNED_GRANT_S = 600.0
_CLAIMS = 3
_BOUND = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})


PlaceOnNode = Callable[[str, str, PodUid, NodeName, Allocation | None], Awaitable[Allocation]]
"""(namespace, name, uid, node, reservation to replace) -> a reservation on exactly that node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRules:
    """What the settings say about binding."""

    timeout_s: float


class _AnswerUnknown(Unavailable):
    """The binding was sent and nobody can say what became of it; the reaper will find out."""


class Binding:
    """The use case of /bind."""

    def __init__(
        self,
        *,
        store: AllocationStore,
        lock: NodeLock,
        mirrored: MirroredLocks,
        pods: PodApi,
        grants: GrantAnnouncer,
        releasing: Releasing,
        placing: PlaceOnNode,
        sign: Callable[[Grant], str],
        announcer: Announcer,
        aside: Aside,
        instruments: Instruments,
        on_unanswered: Callable[[NodeName], None],
        rules: BindRules,
    ) -> None:
        """`on_unanswered` is told of nodes whose agent can take no pod."""
        self._store = store
        self._lock = lock
        self._mirrored = mirrored
        self._pods = pods
        self._grants = grants
        self._releasing = releasing
        self._placing = placing
        self._sign = sign
        self._announcer = announcer
        self._aside = aside
        self._instruments = instruments
        self._on_unanswered = on_unanswered
        self._rules = rules

    async def bind(self, args: BindArgs) -> str:
        """Answers /bind: the empty string, or what went wrong."""
        started = time.perf_counter()
        error = ""
        try:
            await self._bind(args, deadline=started + self._rules.timeout_s - ANSWER_MARGIN_S)
        except HamiError as exc:
            error = str(exc)
            self._say(args, BINDING_FAILED, error, warning=True)
            logger.warning(
                "binding failed",
                extra={"pod_uid": args.pod_uid, "node": args.node, "error": error},
            )
        outcome = "failed" if error else "bound"
        self._instruments.bind_seconds.labels(outcome).observe(time.perf_counter() - started)
        return error

    async def _bind(self, args: BindArgs, *, deadline: float) -> None:
        allocation = await self._claim(args)
        if allocation is None:
            return
        with tracer.start_as_current_span(
            "bind",
            context=telemetry.extract({"traceparent": allocation.traceparent}),
            attributes={
                "hami.pod.uid": allocation.pod_uid,
                "hami.pod.name": f"{allocation.namespace}/{allocation.pod_name}",
                "hami.node": allocation.node,
            },
        ):
            try:
                await self._bind_claimed(allocation, deadline)
            except _AnswerUnknown:
                raise
            except HamiError as exc:
                if not await self._bound_after_all(allocation):
                    await self._give_up(allocation, str(exc))
                    raise
        self._say(
            args,
            BINDING_SUCCEED,
            f"Successfully binding node [{args.node}] to {args.pod_namespace}/{args.pod_name}",
            warning=False,
        )

    async def _claim(self, args: BindArgs) -> Allocation | None:
        """The allocation in state `binding` with a new token; None when it is bound already."""
        uid, node = PodUid(args.pod_uid), NodeName(args.node)
        for _ in range(_CLAIMS):
            live = await self._store.live_of(uid)
            if live is not None and live.node == node and live.state in _BOUND:
                await self._bind_again(live)
                return None
            if live is not None and live.state is not AllocationState.RESERVED:
                if live.node != node or live.state is not AllocationState.BINDING:
                    raise Conflict(f"the pod is {live.state} on node {live.node}, not on {node}")
            elif live is None or live.node != node:
                live = await self._placing(args.pod_namespace, args.pod_name, uid, node, live)
            change = await self._store.advance(
                Step(
                    allocation_id=live.id,
                    sources=frozenset({live.state}),
                    target=AllocationState.BINDING,
                    actor=ACTOR,
                    token=live.token,
                    new_token=True,
                    lease_s=self._rules.timeout_s + BINDING_EXTRA_S,
                )
            )
            if change is not None:
                self._instruments.transitions.labels(AllocationState.BINDING.value).inc()
                return change.allocation
        raise Conflict(f"the reservation of pod {uid} changed {_CLAIMS} times while it was bound")

    async def _bind_again(self, allocation: Allocation) -> None:
        """The row says that the pod is bound; if it is, this is a success."""
        pod = await self._pods.get(allocation.namespace, allocation.pod_name)
        facts = facts_of(pod)
        if facts.uid != allocation.pod_uid or facts.node != allocation.node:
            await self._post_binding(
                allocation, self._annotations(allocation, self._grant(allocation))
            )

    def _grant(self, allocation: Allocation) -> Grant:
        return grant_of(
            allocation, expires_at=datetime.now(UTC) + timedelta(seconds=SIGNED_GRANT_S)
        )

    async def _bind_claimed(self, allocation: Allocation, deadline: float) -> None:
        grant = self._grant(allocation)
        await self._acquire_lock(allocation, deadline)
        late = allocation.has_agent and await self._tell_agent(allocation, grant)
        await self._check_still_ours(allocation)
        with tracer.start_as_current_span("mirror"):
            await self._post_binding(allocation, self._annotations(allocation, grant))
        await self._mark_bound(allocation)
        if late:
            # Elsewhere the node's report frees it.
            await self._releasing.free_lock(allocation)
        self._aside.put(partial(self._label, allocation))

    async def _tell_agent(self, allocation: Allocation, grant: Grant) -> bool:
        """True when the node binds late: the lock then ends with the binding."""
        # A pod that is bound to a node whose agent or kubelet is away fails there for good.
        try:
            late = await self._grants.expect_ready(allocation.node)
        except AgentNotReady:
            self._on_unanswered(allocation.node)
            raise
        try:
            await self._grants.granted(grant)
        except Unavailable as exc:
            self._instruments.grants_unannounced.inc()
            logger.warning("grant not on the bus, only signed", extra={"error": str(exc)})
        return late

    async def _acquire_lock(self, allocation: Allocation, deadline: float) -> None:
        assert allocation.token is not None
        holder = LockHolder(
            pod_uid=allocation.pod_uid, allocation_id=allocation.id, token=allocation.token
        )
        started = time.perf_counter()
        with tracer.start_as_current_span("lock"):
            wait_s = max(0.1, deadline - started)
            await self._lock.acquire(allocation.node, holder, wait_s=wait_s)
            if not allocation.has_agent:
                wait_s = max(0.1, deadline - time.perf_counter())
                await self._mirrored.acquire(allocation, wait_s=wait_s)
        self._instruments.lock_wait_seconds.observe(time.perf_counter() - started)

    def _annotations(self, allocation: Allocation, grant: Grant) -> dict[str, str]:
        """HAMi's keys and ours; they come with the binding, so no pod has them without its node."""
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=datetime.now(UTC)
        )
        return {**allocation.annotations, **common, GRANT: self._sign(grant)}

    async def _label(self, allocation: Allocation) -> None:
        """The label that people select by, after the binding, when nobody waits for a decision.

        kube-scheduler takes a changed label of a pod that it has assumed for a reason to schedule
        it again, which fails with a warning on the pod (`skipPodUpdate` passes annotations over).
        """
        labels = node_label(allocation.node)
        if not labels:
            return
        try:
            await self._pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations={},
                labels=labels,
            )
        except HamiError as exc:
            logger.info("pod not labelled", extra={"error": str(exc)})

    async def _check_still_ours(self, allocation: Allocation) -> None:
        row = await self._store.get(allocation.id)
        if row is None or row.state is not AllocationState.BINDING or row.token != allocation.token:
            # Also when it is bound by now: `_bound_after_all` looks at the pod itself.
            now = "gone" if row is None else f"{row.state} with token {row.token}"
            raise Conflict(
                f"the grant of pod {allocation.pod_uid} was taken over while it was bound: {now}"
            )

    async def _post_binding(self, allocation: Allocation, annotations: Mapping[str, str]) -> None:
        try:
            await self._pods.bind(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                node=allocation.node,
                annotations=annotations,
            )
        except (Conflict, Unavailable) as exc:
            # Conflict: bound already, perhaps by an attempt of ours whose answer was lost.
            pod = await self._read_back(allocation, exc)
            if annotations_of(pod).get(GRANT) != annotations[GRANT]:
                # By an attempt before this one: its token counts no more.
                await self._pods.annotate(
                    allocation.namespace,
                    allocation.pod_name,
                    uid=allocation.pod_uid,
                    annotations=annotations,
                    labels={},
                )

    async def _read_back(self, allocation: Allocation, error: HamiError) -> Json:
        """The pod, which is where it should be."""
        try:
            pod = await self._pods.get(allocation.namespace, allocation.pod_name)
        except NotFound:
            raise NotFound(f"pod {allocation.namespace}/{allocation.pod_name} is gone") from error
        except Unavailable as exc:
            raise _AnswerUnknown(
                f"the answer to the binding was lost, and so is the API server: {exc}"
            ) from error
        facts = facts_of(pod)
        if facts.uid != allocation.pod_uid or facts.node != allocation.node:
            raise error
        return pod

    async def _mark_bound(self, allocation: Allocation) -> None:
        verdict = Verdict(target=AllocationState.BOUND, reason="")
        change = await self._releasing.carry_out(
            allocation, verdict, actor=ACTOR, token=allocation.token
        )
        if change is None:
            row = await self._store.get(allocation.id)
            if row is None or row.state not in _BOUND:
                # The pod is bound all the same; the reconciler finds pods without a grant.
                logger.error("bound without a row", extra={"pod_uid": allocation.pod_uid})

    async def _bound_after_all(self, allocation: Allocation) -> bool:
        """True when the pod is on the node all the same, through a binder that we took over from.

        Raises: _AnswerUnknown when nobody can say; the grant then stays until its deadline.
        """
        try:
            pod = await self._pods.get(allocation.namespace, allocation.pod_name)
        except NotFound:
            return False
        except Unavailable as exc:
            raise _AnswerUnknown(f"the pod can't be read, so its grant stays: {exc}") from exc
        facts = facts_of(pod)
        if facts.uid != allocation.pod_uid or facts.node != allocation.node:
            return False
        await self._mark_bound(allocation)
        return True

    async def _give_up(self, allocation: Allocation, reason: str) -> None:
        verdict = Verdict(target=AllocationState.FAILED, reason=reason)
        try:
            await self._releasing.carry_out(
                allocation, verdict, actor=ACTOR, token=allocation.token
            )
        except HamiError as exc:
            # The deadline of `binding` ends it.
            logger.warning("failed binding not written down", extra={"error": str(exc)})
            await self._releasing.free_lock(allocation)

    def _say(self, args: BindArgs, reason: str, message: str, *, warning: bool) -> None:
        self._announcer.say(
            reason,
            message,
            namespace=args.pod_namespace,
            name=args.pod_name,
            uid=PodUid(args.pod_uid),
            warning=warning,
        )
