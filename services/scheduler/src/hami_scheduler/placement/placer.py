"""Choose cards for a pod by the state in memory, and assume them.

Nothing is written, and nothing is waited for. /filter (`extender/filter.py`) offers many nodes,
/bind exactly one. A choice becomes the draft of a grant: what the ledger must know beside the
slices, the annotations of the vendors, and the versions of the cards where counters do not show
all that a vendor chose by.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.domain.allocations import Allocation, AllocationState, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.errors import HamiError, QuotaConflict, Unschedulable
from hamicommon.explain.sentences import quota_sentence
from hamicommon.k8s.pod_object import owner_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.ledger.model import Draft
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import Decision, decide
from hamicommon.placement.vendor_policy import standard_need
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.pod_request import PodRequests
from hamicommon.vendors.registry import Vendors
from opentelemetry.trace import get_tracer

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.quota import cards_beyond, quota_amounts, quota_short
from hami_scheduler.placement.decisions import DecisionQueue, DecisionTrace

ACTOR = "scheduler"


def draft_of(
    request: PodRequest,
    placement: Placement,
    cluster: ClusterView,
    vendors: Vendors,
    *,
    lease_s: float,
    owner: PodOwner | None = None,
) -> Draft:
    """Return the grant of `placement`; `cluster` is that of the choice."""
    cards = {card.usage.device.uuid: card for card in cluster.cards(placement.node)}
    used = _vendors_of(placement)
    devices = {name: state.usage.device for name, state in cards.items()}
    exact = any(vendor.rules.exact for vendor in vendors if vendor.name in used)
    return Draft(
        allocation_id=AllocationId(str(uuid.uuid4())),
        pod_uid=request.uid,
        namespace=request.namespace,
        pod_name=request.name,
        placement=placement,
        lease_s=lease_s,
        quota=quota_amounts(placement.containers, vendors),
        policy=request.policy,
        annotations=vendors_annotations(
            placement, devices, request.selections, vendors, now=datetime.now(UTC)
        ),
        seen={name: state.version for name, state in cards.items()} if exact else {},
        core_totals=_core_totals(request, placement, cards, vendors),
        traceparent=telemetry.traceparent(),
        owner=owner,
        actor=ACTOR,
    )


def vendors_annotations(
    placement: Placement,
    devices: Mapping[GpuUuid, GpuDevice],
    selections: Mapping[str, Selection],
    vendors: Vendors,
    *,
    now: datetime,
) -> dict[str, str]:
    """Return the annotations of the slices' vendors; `devices` include the pod's cards."""
    used = _vendors_of(placement)
    placed = PlacedPod.by_card_ids(placement, devices, selections, now)
    written: dict[str, str] = {}
    for vendor in vendors:
        if vendor.name in used:
            written |= vendor.pod_annotations(placed)
    return written


def _vendors_of(placement: Placement) -> set[str]:
    return {share.vendor for container in placement.containers for share in container.shares}


def assumed_allocation(draft: Draft, now: datetime) -> Allocation:
    """Return the draft as an allocation without number and token."""
    return Allocation(
        id=draft.allocation_id,
        pod_uid=draft.pod_uid,
        namespace=draft.namespace,
        pod_name=draft.pod_name,
        attempt=0,
        node=draft.placement.node,
        state=AllocationState.RESERVED,
        containers=draft.placement.containers,
        reserved_at=now,
        traceparent=draft.traceparent,
        annotations=draft.annotations,
    )


def _core_totals(
    request: PodRequest,
    placement: Placement,
    cards: Mapping[GpuUuid, CardState],
    vendors: Vendors,
) -> dict[GpuUuid, int]:
    """Return totals of cores that a request counts differently from the card."""
    own = {v.name: v.rules.need for v in vendors if v.rules.need is not standard_need}
    totals: dict[GpuUuid, int] = {}
    for asked, given in zip(request.containers, placement.containers, strict=True):
        wanted = {item.vendor: item for item in asked.requests}
        for share in given.shares:
            if share.vendor in own:
                selection = request.selection_of(share.vendor)
                device = cards[share.uuid].usage.device
                need = own[share.vendor](wanted[share.vendor], selection, device)
                if need.of_core is not None:
                    totals[share.uuid] = need.of_core
    return totals


tracer = get_tracer(__name__)


class OverQuota(HamiError):
    """Error: the namespace's quota refuses the pod on every node."""

    def __init__(self, conflict: QuotaConflict, vendors: Vendors) -> None:
        self.quota = quota_short(conflict, vendors)
        super().__init__(quota_sentence(self.quota))


class NoRoom(Unschedulable):
    """Error: the only requested node can't hold the pod."""

    def __init__(self, node: NodeName, reason: str) -> None:
        super().__init__({node: reason})
        self.args = (f"node {node} can't hold the pod: {reason}",)


@dataclass(eq=False, kw_only=True)
class Placer:
    """Placer of pods.

    `binding_s`: how long a grant may stay in `binding`.
    """

    state: ClusterState
    requests: PodRequests
    recorder: DecisionQueue
    binding_s: float
    owner_of: Callable[[JsonMapping], PodOwner] = owner_of

    def place(
        self, request: PodRequest, names: Sequence[NodeName], trace: DecisionTrace
    ) -> Draft | Decision:
        """Assume the best placement on these nodes, and return its draft.

        If no node has room, return the decision with the refusal.

        The pod's earlier assumption is replaced. Raises: OverQuota.
        """
        state = self.state
        was_assumed = state.lift([request.uid])
        try:
            return self._assume_best(request, names, trace)
        finally:
            if was_assumed and state.assumption(request.uid) is None:
                state.notify_freed()

    def _assume_best(
        self, request: PodRequest, names: Sequence[NodeName], trace: DecisionTrace
    ) -> Draft | Decision:
        state, cluster = self.state, self.state.cluster
        beyond: frozenset[GpuUuid] = frozenset()
        conflict: QuotaConflict | None = None
        while True:
            with trace.phase("place"), tracer.start_as_current_span("place"):
                decision = decide(request, cluster, candidates=names, without_cards=beyond)
            trace.view_version, trace.scores = decision.view_version, decision.scores
            trace.frozen = self.recorder.frozen(cluster, decision.scores)
            if decision.placement is None:
                if conflict is not None:
                    raise OverQuota(conflict, self.requests.vendors)
                return decision
            draft = draft_of(
                request,
                decision.placement,
                cluster,
                self.requests.vendors,
                lease_s=self.binding_s,
                owner=self.owner_of(trace.pod),
            )
            conflict = state.quotas.conflict(draft.namespace, draft.quota)
            if conflict is None:
                state.assume(draft)
                return draft
            # A percentage of a smaller card may still be within the quota.
            larger = cards_beyond(request, cluster, conflict, self.requests.vendors)
            if larger <= beyond:
                raise OverQuota(conflict, self.requests.vendors)
            beyond |= larger
