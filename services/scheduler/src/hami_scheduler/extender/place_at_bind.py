"""Placing a pod that comes to /bind without an assumption, on exactly the node that was chosen.

After a restart between /filter and /bind, for `allocate_at=bind`, and for pods whose devices come
by ResourceClaims.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import NotFound, Unavailable
from hamicommon.ledger.model import Draft
from hamicommon.vendors.pod_request import PodRequests
from opentelemetry.trace import get_tracer

from hami_scheduler.extender.protocol import BindArgs
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.placer import NoRoom, Placer, assumed_allocation
from hami_scheduler.ports.cluster import PodApi

tracer = get_tracer(__name__)

ClaimsOnNode = Callable[[str, str, PodUid, NodeName], Awaitable[Allocation | None]]
"""(namespace, name, uid, node) -> the grant of the pod's ResourceClaims, in state `binding`; None
if none of them is ours."""


@dataclass(eq=False, kw_only=True)
class PlaceAtBind:
    """Places such pods (`bind.PlaceOnNode`)."""

    state: ClusterState
    placer: Placer
    claims_on_node: ClaimsOnNode
    pods: PodApi
    requests: PodRequests
    recorder: DecisionQueue

    async def __call__(self, args: BindArgs) -> Draft | Allocation | None:
        """Place the pod on the node that kube-scheduler binds it to.

        Raises: NotFound, InvalidRequest, Unschedulable with the reason, OverQuota, Conflict,
        Unavailable.
        """
        namespace, name, uid = args.pod_namespace, args.pod_name, PodUid(args.pod_uid)
        pod = await self.pods.get(namespace, name)
        if pod["metadata"]["uid"] != uid:
            raise NotFound(f"pod {namespace}/{name} with uid {uid} is gone")
        node = NodeName(args.node)
        trace = DecisionTrace(pod=pod, started=time.perf_counter(), candidates=1)
        request = trace.request = self.requests.of(pod)
        if not request.wants_devices:
            return await self.claims_on_node(namespace, name, uid, node)
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
