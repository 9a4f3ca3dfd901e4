"""Slices of MIG cards, as protocol 1.1 chooses and places them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.allocations import DeviceShare, Placement
from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.k8s.mig import MigSlice
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import place
from hamicommon.placement.unschedulable import Refusal
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.nvidia.mig import cut
from hamicommon.vendors.nvidia.nvidia import Nvidia
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, container, pod

NVIDIA = Nvidia(NvidiaConfig())
N = NodeName("n")


def profile(name: str, memory_mib: int, core: int, slices: int, *starts: int, size: int):
    return MigProfile(
        name=name,
        memory_mib=memory_mib,
        core_percent=core,
        slice_count=slices,
        placements=tuple((start, size) for start in starts),
    )


A100_40G = (
    profile("7g.40gb", 40192, 100, 7, 0, size=8),
    profile("3g.20gb", 20096, 43, 3, 0, 4, size=4),
    profile("2g.10gb", 9984, 29, 2, 0, 2, 4, size=2),
    profile("1g.5gb", 4864, 15, 1, *range(7), size=1),
)
"""Profiles that the driver reports for a 40 GB A100, from the largest to the smallest."""


def mig_card(uuid: str = "g", *parts: MigSlice, **given) -> DeviceUsage:
    usage = card(
        uuid,
        mode="mig",
        slots=7,
        memory_mib=40960,
        type="NVIDIA A100-SXM4-40GB",
        used=(len(parts), 0, 0),
        **given,
    )
    return replace(
        usage,
        device=replace(usage.device, mig_profiles=A100_40G),
        holdings=tuple(part.detail for part in parts),
    )


def part(name: str, start: int, size: int) -> MigSlice:
    return MigSlice(profile=name, start=start, size=size)


def answer(request: PodRequest, *usages: DeviceUsage) -> Placement | Refusal:
    view = ClusterView({"NVIDIA": NVIDIA.rules})
    view.set_node(N, [CardState(usage, 1) for usage in usages])
    return place(request, view)


def shares(request: PodRequest, *usages: DeviceUsage) -> list[DeviceShare]:
    found = answer(request, *usages)
    assert isinstance(found, Placement), found
    return [share for c in found.containers for share in c.shares]


def parts(request: PodRequest, *usages: DeviceUsage) -> list[tuple[str, str, int]]:
    found = []
    for share in shares(request, *usages):
        held = MigSlice.from_detail(share.detail)
        found.append((share.uuid, held.profile if held else "", held.start if held else -1))
    return found


def reason(request: PodRequest, *usages: DeviceUsage) -> str:
    found = answer(request, *usages)
    assert isinstance(found, Refusal), found
    return found.reasons[N]


def test_3g_goes_high_2g_low_and_1g_high_in_what_is_left() -> None:
    request = pod(*(cards(memory_mib=m) for m in (20000, 9000, 4000, 4000)))

    assert parts(request, mig_card()) == [
        ("g", "3g.20gb", 4),
        ("g", "2g.10gb", 0),
        ("g", "1g.5gb", 3),
        ("g", "1g.5gb", 2),
    ]


def test_a_slice_takes_the_memory_and_cores_of_its_profile() -> None:
    (share,) = shares(pod(cards(memory_mib=5000, core_percent=1)), mig_card())

    assert (share.memory_mib, share.core_percent, share.slots) == (9984, 29, 1)


def test_a_larger_profile_is_taken_where_the_smallest_has_no_place() -> None:
    full = [part("1g.5gb", start, 1) for start in (1, 3, 5)]
    profiles = tuple(p for p in A100_40G if p.name != "1g.5gb")

    assert cut(profiles, 4000, full) is None
    found = cut(A100_40G, 4000, [part("1g.5gb", start, 1) for start in range(1, 7)])
    assert found is not None
    assert found[1] == part("1g.5gb", 0, 1)
    found = cut(profiles, 4000, [part("2g.10gb", 0, 2)])
    assert found is not None
    assert found[1] == part("2g.10gb", 2, 2)


def test_of_profiles_with_equal_memory_the_one_of_fewer_slices_is_taken() -> None:
    wide = profile("2g.x", 100, 20, 2, 0, size=2)
    narrow = profile("1g.x", 100, 10, 1, 0, size=1)

    found = cut((wide, narrow), 100, ())
    assert found is not None
    assert found[0] is narrow


def test_several_slices_of_one_container_may_be_on_one_card() -> None:
    request = pod(cards(count=3, memory_mib=9000))

    assert parts(request, mig_card()) == [("g", "2g.10gb", s) for s in (0, 2, 4)]
    assert reason(pod(cards(count=4, memory_mib=9000)), mig_card()) == (
        "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest"
    )


def test_more_slices_than_cards_is_no_mig_request_where_the_pod_wants_another_mode() -> None:
    request = pod(cards(count=2, memory_mib=9000), selection=Selection(mode="hami-core"))

    assert reason(request, mig_card()) == "NodeInsufficientDevice"
    allowed = pod(cards(count=2, memory_mib=9000), selection=Selection(mode="hami-core,mig"))
    assert len(shares(allowed, mig_card())) == 2


def test_more_cards_than_a_node_without_mig_has_is_still_insufficient() -> None:
    assert reason(pod(cards(count=2, memory_mib=9)), card("plain")) == "NodeInsufficientDevice"


def test_a_plain_card_of_the_node_is_taken_once_and_a_mig_card_again() -> None:
    plain = card("plain", memory_mib=40960)
    request = pod(cards(count=3, memory_mib=20000))

    assert parts(request, mig_card(), plain) == [
        ("plain", "", -1),
        ("g", "3g.20gb", 4),
        ("g", "3g.20gb", 0),
    ]


def test_more_memory_than_any_profile_has_is_infeasible() -> None:
    assert reason(pod(cards()), mig_card()) == "1/1 CardMigTopologyInfeasible"


def test_placements_of_other_pods_are_left_alone() -> None:
    held = mig_card("g", part("3g.20gb", 4, 4), part("2g.10gb", 0, 2))

    assert parts(pod(cards(memory_mib=9000)), held) == [("g", "2g.10gb", 2)]
    assert reason(pod(cards(memory_mib=20000)), held) == "1/1 CardMigTopologyInfeasible"


def test_a_mig_card_with_a_slice_that_is_nowhere_recorded_takes_no_more() -> None:
    unknown = replace(mig_card("g"), used_slots=1)
    assert reason(pod(cards(memory_mib=4000)), unknown) == "1/1 CardNotHealth"


def test_a_card_that_left_mig_mode_with_slices_on_it_takes_no_more() -> None:
    left = mig_card("g", part("1g.5gb", 0, 1))
    left = replace(left, device=replace(left.device, mode="hami-core"))
    assert reason(pod(cards(memory_mib=4000)), left) == "1/1 CardNotHealth"


def test_a_card_takes_slices_again_when_the_record_has_come() -> None:
    view = ClusterView({"NVIDIA": NVIDIA.rules})
    view.set_node(N, [CardState(replace(mig_card("g"), used_slots=1), 1)])
    assert isinstance(place(pod(cards(memory_mib=4000)), view), Refusal)

    view.apply(
        GpuUuid("g"),
        slots=1,
        memory_mib=4864,
        core_percent=15,
        version=2,
        holdings=[part("1g.5gb", 6, 1).detail],
    )
    placed = place(pod(cards(memory_mib=4000)), view)
    assert isinstance(placed, Placement)
    assert placed.containers[0].shares[0].detail == part("1g.5gb", 5, 1).detail


def test_numa_bind_drops_slices_of_a_group_that_ends_short() -> None:
    request = pod(cards(count=3, memory_mib=20000), selection=Selection(numa_bind=True))

    assert reason(request, mig_card("a"), mig_card("b", numa=1)) == (
        "2/2 AllocatedCardsInsufficientRequest, 2/2 CardMigTopologyInfeasible, 2/2 NumaNotFit"
    )
    two = pod(cards(count=2, memory_mib=20000), selection=Selection(numa_bind=True))
    assert [uuid for uuid, *_ in parts(two, mig_card("a"), mig_card("b", numa=1))] == ["b", "b"]


def test_the_rounded_up_cores_of_a_full_card_stay_within_the_card_and_whole_on_the_wire() -> None:
    device: GpuDevice = mig_card().device
    view = ClusterView({"NVIDIA": NVIDIA.rules})
    view.set_node(N, [CardState(DeviceUsage(device=device), 1)])
    placement = place(pod(cards(count=7, memory_mib=4000)), view)
    assert isinstance(placement, Placement)

    assert [s.core_percent for s in placement.containers[0].shares] == [15] * 6 + [10]
    written = NVIDIA.pod_annotations(
        PlacedPod(
            node=N,
            containers=placement.containers,
            cards={device.uuid: device},
            selections={},
            now=datetime(2026, 1, 1, tzinfo=UTC),
        )
    )
    assert written["hami.io/vgpu-devices-allocated"] == "g,NVIDIA,4864,15:" * 7 + ";"
    assert written["hami.io/vgpu-mig-allocations"].startswith(
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"g","profile":"1g.5gb",'
        '"placement":{"start":6,"size":1}},'
    )


def test_topology_collects_the_slices_that_fit_and_takes_the_first_of_the_least_connected() -> None:
    request = pod(cards(memory_mib=20000), gpu=("topology-aware",))

    assert parts(request, mig_card("a"), mig_card("b")) == [("b", "3g.20gb", 4)]


@settings(max_examples=60)
@given(st.lists(st.sampled_from((4000, 9000, 20000, 40000)), min_size=1, max_size=12))
def test_no_two_slices_of_a_card_ever_overlap(sizes: Sequence[int]) -> None:
    view = ClusterView({"NVIDIA": NVIDIA.rules})
    view.set_node(N, [CardState(mig_card(), 1)])
    held: list[MigSlice] = []
    used = [0, 0, 0]
    for version, size in enumerate(sizes, start=2):
        found = place(pod(container(cards(memory_mib=size))), view)
        if isinstance(found, Refusal):
            continue
        (share,) = found.containers[0].shares
        new = MigSlice.from_detail(share.detail)
        assert new is not None
        assert not any(new.overlaps(old.start, old.size) for old in held)
        held.append(new)
        used = [used[0] + 1, used[1] + share.memory_mib, used[2] + share.core_percent]
        view.apply(
            GpuUuid("g"),
            slots=used[0],
            memory_mib=used[1],
            core_percent=used[2],
            version=version,
            holdings=[one.detail for one in held],
        )
        assert used[1] <= 40960
        assert used[2] <= 100


@pytest.mark.parametrize("mode", ["", "mig", "hami-core,mig"])
def test_slices_are_given_to_pods_that_want_mig_or_anything(mode: str) -> None:
    request = pod(cards(memory_mib=4000), selection=Selection(mode=mode))
    assert parts(request, mig_card()) == [("g", "1g.5gb", 6)]
