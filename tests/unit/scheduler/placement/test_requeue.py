"""Choice of the pods to requeue when capacity became free."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.placer import draft_of
from hami_scheduler.placement.waiting_pods import (
    MAX_PASSED_OVER,
    MAX_REQUEUED,
    Requeuer,
    WaitingPod,
    WaitingPods,
)
from hami_scheduler.ports.ledger import CardReader
from hamicommon import device_config
from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Policy
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.vendor_policy import Need, VendorRules
from hamicommon.vendors.nvidia.nvidia import Nvidia
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.fakes.pods import FakePodApi
from tests.unit.devices import a_device
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))


class NeverAsked(CardReader):
    """The view is filled by hand."""


@pytest.fixture
def view() -> ClusterState:
    """One card with room for a hundred small pods."""
    made = state_of(NeverAsked(), VENDORS.rules)
    device = a_device(type="A100", slots=100, memory_mib=10_000)
    made.cluster.set_node(NodeName("n"), [CardState(DeviceUsage(device=device), 1)])
    return made


def pod(number: int, *, memory_mib: int = 100, priority: int = 0) -> WaitingPod:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    name, uid = f"p{number}", f"u{number:03d}"
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return WaitingPod(
        uid=PodUid(uid),
        namespace="default",
        name=name,
        created_at=f"2026-01-01T00:00:{number:02d}Z",
        priority=priority,
        request=pod_request(body, VENDORS),
    )


async def woken(view: ClusterState, *pods: WaitingPod) -> list[str]:
    waiting = WaitingPods()
    for one in pods:
        waiting.add(one)
    requeuer = Requeuer(
        view=view, waiting=waiting, pods=FakePodApi(), instruments=SchedulerInstruments()
    )
    return [one.name for one in await requeuer.fitting()]


async def test_at_most_ten_are_woken_at_once_the_oldest_first(view: ClusterState) -> None:
    found = await woken(view, *(pod(number) for number in reversed(range(30))))

    assert found == [f"p{number}" for number in range(MAX_REQUEUED)]


async def test_a_higher_priority_goes_first(view: ClusterState) -> None:
    assert await woken(view, pod(1), pod(2, priority=5)) == ["p2", "p1"]


async def test_who_does_not_fit_sleeps_on_and_hides_nobody(view: ClusterState) -> None:
    large = [pod(number, memory_mib=20_000) for number in range(20)]

    assert await woken(view, *large, pod(50)) == ["p50"]


async def test_a_pass_over_ten_thousand_pods_that_do_not_fit_lets_others_work(
    view: ClusterState,
) -> None:
    waiting = WaitingPods()
    large = pod(1, memory_mib=20_000)
    for number in range(10_000):
        waiting.add(replace(large, uid=PodUid(f"u{number:05d}")))
    requeuer = Requeuer(
        view=view, waiting=waiting, pods=FakePodApi(), instruments=SchedulerInstruments()
    )
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(work())
    assert await requeuer.fitting() == []
    others.cancel()

    assert turns >= 10_000 // MAX_PASSED_OVER


async def test_shapes_whose_hashes_are_equal_do_not_share_a_fate(
    view: ClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PodRequest, "__hash__", lambda _: 1, raising=False)
    monkeypatch.setattr(ContainerRequest, "__hash__", lambda _: 1)
    monkeypatch.setattr(DeviceRequest, "__hash__", lambda _: 1)

    assert await woken(view, pod(1, memory_mib=20_000), pod(2)) == ["p2"]


# --- fields of a reservation beside its slices


CARD = a_device("x", memory_mib=1000, core_percent=20)


@dataclass(frozen=True, slots=True)
class Peculiar(Nvidia):
    """NVIDIA with other rules."""

    own: VendorRules = field(default_factory=VendorRules)

    @property
    def rules(self) -> VendorRules:
        return self.own


def build_draft(**rules: Any) -> Any:
    vendor = Peculiar(NvidiaConfig(), VendorRules(**rules))
    share = DeviceShare(uuid=CARD.uuid, vendor="NVIDIA", memory_mib=300, core_percent=30)
    request = PodRequest(
        uid=PodUid("u"),
        namespace="ns",
        name="p",
        containers=(
            ContainerRequest(name="idle", role="app"),
            ContainerRequest(
                name="main",
                role="app",
                requests=(DeviceRequest(vendor="NVIDIA", count=1, memory_mib=300),),
            ),
        ),
        policy=Policy(gpu=("binpack", "mutex")),
    )
    containers = (
        ContainerGrant(index=0, name="idle", role="app"),
        ContainerGrant(index=1, name="main", role="app", shares=(share,)),
    )
    vendors, node = Vendors((vendor,)), NodeName("n")
    cluster = ClusterView(vendors.rules)
    cluster.set_node(node, [CardState(DeviceUsage(device=replace(CARD)), 7)])
    placement = Placement(node=node, containers=containers)
    return draft_of(request, placement, cluster, vendors, lease_s=60)


def test_a_draft_carries_what_the_vendors_write_on_the_pod_and_what_quotas_count() -> None:
    draft = build_draft()

    assert draft.annotations == {
        "hami.io/vgpu-devices-to-allocate": ";x,NVIDIA,300,30:;",
        "hami.io/vgpu-devices-allocated": ";x,NVIDIA,300,30:;",
    }
    assert draft.quota == {"nvidia.com/gpumem": 300, "nvidia.com/gpucores": 30}
    assert draft.policy == Policy(gpu=("binpack", "mutex"))
    assert (draft.seen, draft.core_totals) == ({}, {})


def test_an_exact_vendor_s_choice_names_the_versions_it_saw() -> None:
    assert build_draft(exact=True).seen == {CARD.uuid: 7}


def test_cores_that_a_request_counts_otherwise_are_reported() -> None:
    draft = build_draft(need=lambda request, selection, card: Need(300, 30, of_core=100))
    assert draft.core_totals == {CARD.uuid: 100}
