"""A plan makes room on the cards of every vendor, by the vendor's own rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hamicommon.domain.allocations import Placement
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.preemption.holdings import Holder, Holdings
from hamicommon.preemption.planner import preview
from hamicommon.vendors.pod_request import pod_request

from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import asking, every_vendor, node
from tests.unit.hamicommon.vendors.nvidia.test_mig import A100_40G

VENDORS = every_vendor()
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def view_of(nodes: list[Json]) -> ClusterView:
    view = ClusterView(VENDORS.rules)
    for each in nodes:
        cards = [
            CardState(DeviceUsage(device=with_profiles(device)), 1)
            for vendor in VENDORS
            for device in vendor.node_devices(each)
        ]
        view.set_node(each["metadata"]["name"], cards)
    return view


def with_profiles(device: GpuDevice) -> GpuDevice:
    """The card with the MIG profiles that its agent reads from the driver."""
    return replace(device, mig_profiles=A100_40G) if device.mode == "mig" else device


def held_by(number: int, placement: Placement) -> Holder:
    details = [
        (share.uuid, dict(share.detail))
        for container in placement.containers
        for share in container.shares
        if share.detail
    ]
    held = tuple(
        PodHolding(
            pod=f"ns/low-{number}",
            node=placement.node,
            uuid=each.uuid,
            slots=each.slots,
            memory_mib=each.memory_mib,
            core_percent=each.core_percent,
            details=tuple(detail for uuid, detail in details if uuid == each.uuid),
        )
        for each in placement.footprints()
    )
    return Holder(
        uid=PodUid(f"low-{number}"),
        pod=f"ns/low-{number}",
        node=placement.node,
        priority=10,
        held=held,
        started_at=NOW - timedelta(seconds=60 + number),
    )


def count(view: ClusterView, holder: Holder, sign: int) -> None:
    for each in holder.held:
        view.shift(
            each.uuid,
            slots=sign * each.slots,
            memory_mib=sign * each.memory_mib,
            core_percent=sign * each.core_percent,
            added=each.details if sign > 0 else (),
            dropped=each.details if sign < 0 else (),
        )


def fill_cluster(view: ClusterView, request: PodRequest) -> list[Holder]:
    """Place pods like this one until none fits."""
    holders: list[Holder] = []
    while (placement := decide(request, view).placement) is not None:
        holders.append(held_by(len(holders), placement))
        count(view, holders[-1], 1)
    return holders


def check_plan(nodes: list[Json], pod: Json) -> None:
    view, request = view_of(nodes), pod_request(pod, VENDORS, Policy())
    holders = fill_cluster(view, request)
    assert holders

    found = preview(request, 1000, Holdings(holders, view, now=NOW))

    [best, *_] = found.plans
    assert len(best.victims) == 1
    count(view, best.victims[0], -1)
    assert decide(request, view, candidates=(best.placement.node,)).placement is not None


def test_each_vendors_pod_gets_room_from_one_like_it() -> None:
    records = recorded.lines("filter-vendors.jsonl")
    assert len(records) >= 20
    for record in records:
        check_plan(record["in"]["nodes"], record["in"]["pod"])


MIG = {"type": "NVIDIA A100-SXM4-40GB", "mode": "mig", "devmem": 40960}
TWO_NUMA = ({"numa": 0}, {"numa": 0}, {"numa": 1}, {"numa": 1})


@pytest.mark.parametrize(
    ("cards", "limits", "annotations"),
    [
        pytest.param((MIG,), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}, {}, id="MIG"),
        pytest.param(
            ({}, {}), {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}, {}, id="whole card"
        ),
        pytest.param(
            ({}, {}, {}), {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5000"}, {}, id="two cards"
        ),
        pytest.param(
            TWO_NUMA,
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "5000"},
            {"nvidia.com/numa-bind": "true"},
            id="two cards of one NUMA node",
        ),
    ],
)
def test_shapes_of_nvidia_get_room(
    cards: tuple[Json, ...], limits: Json, annotations: dict[str, str]
) -> None:
    check_plan([node("n", *cards)], asking(limits, annotations=annotations))
