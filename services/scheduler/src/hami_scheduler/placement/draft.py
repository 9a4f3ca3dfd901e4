"""From a placement to the draft of a grant: what the ledger must know beside the slices.

Pure: the vendors' annotations of the placed pod, what counts against quotas, and, if a vendor's
choice can't be guarded by counters alone, the versions of the cards that it was made of.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime

from hamicommon import telemetry
from hamicommon.domain.allocations import Allocation, AllocationState, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.ledger.model import Draft
from hamicommon.placement.cluster.view import CardState
from hamicommon.placement.vendor_policy import standard_need
from hamicommon.vendors.interface.vendor import Placed
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.quota import quota_amounts

ACTOR = "scheduler"
_ANY = Selection()


def draft_of(
    request: PodRequest,
    placement: Placement,
    cards: Mapping[GpuUuid, CardState],
    vendors: Vendors,
    *,
    now: datetime,
    lease_s: float,
    owner: PodOwner | None = None,
) -> Draft:
    """The grant of `placement`; `cards` are the node's as the choice saw them."""
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
        mutex="mutex" in request.policy.gpu,
        quota=quota_amounts(placement.containers, vendors),
        policy={"node": request.policy.node, "gpu": list(request.policy.gpu)},
        annotations=vendors_annotations(placement, devices, request.selections, vendors, now=now),
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
    """What the vendors of the slices write on the pod; `devices` are at least its cards."""
    used = _vendors_of(placement)
    placed = Placed.by_card_ids(placement, devices, selections, now)
    written: dict[str, str] = {}
    for vendor in vendors:
        if vendor.name in used:
            written |= vendor.pod_annotations(placed)
    return written


def _vendors_of(placement: Placement) -> set[str]:
    return {share.vendor for container in placement.containers for share in container.shares}


def assumed_allocation(draft: Draft, now: datetime) -> Allocation:
    """The draft as an allocation, before the ledger has given it a number and a token."""
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
    """Where a request counts a card's cores otherwise than the card registers them."""
    own = {v.name: v.rules.need for v in vendors if v.rules.need is not standard_need}
    totals: dict[GpuUuid, int] = {}
    for asked, given in zip(request.containers, placement.containers, strict=True):
        wanted = {item.vendor: item for item in asked.requests}
        for share in given.shares:
            if share.vendor in own:
                selection = request.selections.get(share.vendor, _ANY)
                device = cards[share.uuid].usage.device
                need = own[share.vendor](wanted[share.vendor], selection, device)
                if need.of_core is not None:
                    totals[share.uuid] = need.of_core
    return totals
