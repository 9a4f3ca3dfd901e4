"""Steps of /bind at agents and the API server; `bind.py` has their order and the rollback.

- `PlaceAtBind`: a pod that comes without an assumption is placed on exactly the node that was
  chosen: after a restart between /filter and /bind, and if its devices come by ResourceClaims.
- `AgentOffers`: the node's agent is asked whether it can take the pod, with the grant in the
  question. A pod that is bound to a node whose agent or kubelet is unavailable fails there for
  good, so an agent that can't take it ends the binding; a bus that is unavailable does not, because
  the grant is signed on the pod as well.
- `PodBinding`: `pods/binding` at the API server, reading it back, the label. If the
  answer is lost, the pod itself shows the result.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.k8s.annotations import GRANT, annotations_of, binding_annotations
from hamicommon.k8s.types import Json
from hamicommon.ledger.model import Draft
from hamicommon.process.best_effort import log_failure
from hamicommon.vendors.pod_request import PodRequests
from opentelemetry.trace import get_tracer

from hami_scheduler.extender.protocol import BindArgs
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.state_machine import facts_of
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions import DecisionQueue, DecisionTrace
from hami_scheduler.placement.placer import NoRoom, Placer, assumed_allocation
from hami_scheduler.ports.cluster import AgentNotReady, GrantAnnouncer, PodApi

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class AgentOffers:
    """Offer grants to the agents of their nodes."""

    grants: GrantAnnouncer
    _: KW_ONLY
    on_unanswered: Callable[[NodeName], None]
    """Function that gets nodes whose agent can take no pod."""
    instruments: SchedulerInstruments
    _asked: dict[NodeName, asyncio.Task[bool | None]] = field(init=False, default_factory=dict)

    async def binds_late(self, node: NodeName) -> bool | None:
        """Return whether the node binds late, asking its agent once for all callers.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        asked = self._asked.get(node)
        if asked is None:
            asked = self._asked[node] = asyncio.create_task(self.grants.binds_late(node))
            asked.add_done_callback(lambda _: self._asked.pop(node, None))
        await asyncio.wait([asked])
        try:
            return asked.result()
        except AgentNotReady:
            self.on_unanswered(node)
            raise

    async def offer(self, grant: Grant, node: NodeName) -> bool | None:
        """Offer the grant; return whether the node binds it late.

        Returns None if it is unknown. Raises: AgentNotReady.
        """
        try:
            return await self.grants.offer(grant)
        except AgentNotReady:
            self.on_unanswered(node)
            raise
        except Unavailable as exc:
            self.instruments.grants_unannounced.inc()
            logger.warning(
                "Failed to publish a grant; the node uses the pod's signed grant",
                extra={"error": str(exc)},
            )
            return None


class AnswerUnknown(Unavailable):
    """Error: the binding was sent but its result is unknown; the reaper will find out."""


@dataclass(frozen=True)
class PodBinding:
    """Bind the pod of an allocation at the API server."""

    pods: PodApi
    _: KW_ONLY
    sign: Callable[[Grant], str]

    async def post(self, allocation: Allocation, grant: Grant) -> bool:
        """Bind the pod, with its annotations and the signed grant.

        Returns False if it was found bound so, perhaps by another binder.

        Raises: NotFound, Conflict (bound elsewhere), Unavailable (it is not bound), AnswerUnknown.
        """
        ref, annotations = PodRef.of(allocation), self._annotations(allocation, grant)
        try:
            await self.pods.bind(ref, allocation.node, annotations=annotations)
        except (Conflict, Unavailable) as exc:
            # Conflict: bound already, perhaps by an attempt of ours whose answer was lost.
            pod = await self._read_back(ref, allocation.node, exc)
            if annotations_of(pod).get(GRANT) != annotations[GRANT]:
                # By an earlier attempt, whose token is no longer valid.
                # Whatever the result, and even if the pod is gone: it was bound, may run there,
                # and its grant ends as that of any pod does.
                failed = "Failed to replace the annotations of an earlier binding"
                with log_failure(logger, failed, pod_uid=ref.uid):
                    await self.pods.annotate(ref, annotations=annotations)
            return False
        return True

    async def post_plain(self, ref: PodRef, node: NodeName) -> None:
        """Bind a pod without a grant; succeed if it is already on the node.

        Raises: NotFound, Conflict (bound elsewhere), Unavailable (it is not bound), AnswerUnknown.
        """
        try:
            await self.pods.bind(ref, node, annotations={})
        except (Conflict, Unavailable) as exc:
            await self._read_back(ref, node, exc)

    async def is_bound(self, allocation: Allocation) -> bool:
        """Return whether exactly this pod is on the node. Raises: NotFound, Unavailable."""
        pod = await self._get(PodRef.of(allocation))
        return facts_of(pod).node == allocation.node

    async def label(self, allocation: Allocation, labels: Mapping[str, str]) -> None:
        """Write the label that HAMi's tools select by, in the background.

        kube-scheduler takes a changed label of a pod that it has assumed for a reason to schedule
        it again, which fails with a warning on the pod (`skipPodUpdate` passes annotations over).
        """
        with log_failure(logger, "Failed to label a pod", level=logging.INFO):
            await self.pods.annotate(PodRef.of(allocation), labels=labels)

    def _annotations(self, allocation: Allocation, grant: Grant) -> dict[str, str]:
        """Return HAMi's annotations and ours, which are written with the binding."""
        common = binding_annotations(
            allocation.node, filtered_at=allocation.reserved_at, bound_at=datetime.now(UTC)
        )
        return {**allocation.annotations, **common, GRANT: self.sign(grant)}

    async def _read_back(self, ref: PodRef, node: NodeName, error: HamiError) -> Json:
        """Return the pod after checking that it is on its node."""
        try:
            pod = await self._get(ref)
        except NotFound as exc:
            if isinstance(error, Unavailable):
                raise AnswerUnknown(
                    f"the response to the binding was lost, and {exc}; a report of its "
                    "node will show whether it runs"
                ) from error
            raise exc from error
        except Unavailable as exc:
            raise AnswerUnknown(
                f"the response to the binding was lost and the API server is unavailable: {exc}"
            ) from error
        if facts_of(pod).node != node:
            raise error
        return pod

    async def _get(self, ref: PodRef) -> Json:
        """Read exactly this pod.

        Raises: NotFound, also if the name is another pod's, Unavailable.
        """
        try:
            pod = await self.pods.get(ref.namespace, ref.name)
        except NotFound:
            pod = None
        if pod is None or facts_of(pod).uid != ref.uid:
            raise NotFound(f"pod {ref.namespace}/{ref.name} is gone")
        return pod


tracer = get_tracer(__name__)

ClaimsOnNode = Callable[[PodRef, NodeName], Awaitable[Allocation | None]]
"""Function that returns the grant of the pod's ResourceClaims on the node, in state `binding`.

None if none of the claims is ours.
"""


@dataclass(eq=False, kw_only=True)
class PlaceAtBind:
    """Place pods at /bind that have no assumption (`bind.PlaceOnNode`)."""

    state: ClusterState
    placer: Placer
    claims_on_node: ClaimsOnNode
    pods: PodApi
    requests: PodRequests
    recorder: DecisionQueue

    async def __call__(self, args: BindArgs) -> Draft | Allocation | None:
        """Place the pod on the node to which kube-scheduler binds it.

        Raises: NotFound, InvalidRequest, Unschedulable with the reason, OverQuota, Conflict,
        Unavailable.
        """
        ref = args.pod
        pod = await self.pods.get(ref.namespace, ref.name)
        if pod["metadata"]["uid"] != ref.uid:
            raise NotFound(f"pod {ref.namespace}/{ref.name} with uid {ref.uid} is gone")
        node = NodeName(args.node)
        trace = DecisionTrace(pod=pod, started=time.perf_counter(), candidates=1)
        request = trace.request = self.requests.of(pod)
        if not request.wants_devices:
            return await self.claims_on_node(ref, node)
        if not self.state.loaded:
            raise Unavailable("the ledger has not been read yet; the pod will be retried")
        with tracer.start_as_current_span("filter"):
            found = self.placer.place(request, [node], trace)
            if not isinstance(found, Draft):
                assert found.refusal is not None
                trace.refuse(found.refusal.reasons, found.refusal.shortfalls)
                self.recorder.add(trace)
                raise NoRoom(node, found.refusal.reasons[node])
            trace.outcome, trace.message = "placed", "placed at /bind"
            trace.allocation = assumed_allocation(found, trace.decided_at)
            self.recorder.add(trace)
        return found
