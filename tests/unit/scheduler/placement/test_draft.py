"""Fields of a reservation beside its slices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hami_scheduler.placement.placer import draft_of
from hamicommon.device_config import NvidiaConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, Placement
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, PodRequest, Policy
from hamicommon.placement.cluster.view import CardState
from hamicommon.placement.vendor_policy import Need, VendorRules
from hamicommon.vendors.nvidia.nvidia import Nvidia
from hamicommon.vendors.registry import Vendors

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CARD = GpuDevice(
    uuid=GpuUuid("x"),
    index=0,
    vendor="NVIDIA",
    type="NVIDIA A100",
    slots=10,
    memory_mib=1000,
    core_percent=20,
)


@dataclass(frozen=True, slots=True)
class Peculiar(Nvidia):
    """NVIDIA with rules of its own."""

    own: VendorRules = field(default_factory=VendorRules)

    @property
    def rules(self) -> VendorRules:
        return self.own


def drafted(**rules: Any) -> Any:
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
    return draft_of(
        request,
        Placement(node=NodeName("n"), containers=containers),
        {CARD.uuid: CardState(DeviceUsage(device=replace(CARD)), 7)},
        Vendors((vendor,)),
        now=NOW,
        lease_s=60,
    )


def test_a_draft_carries_what_the_vendors_write_on_the_pod_and_what_quotas_count() -> None:
    draft = drafted()

    assert draft.annotations == {
        "hami.io/vgpu-devices-to-allocate": ";x,NVIDIA,300,30:;",
        "hami.io/vgpu-devices-allocated": ";x,NVIDIA,300,30:;",
    }
    assert draft.quota == {"nvidia.com/gpumem": 300, "nvidia.com/gpucores": 30}
    assert draft.policy == Policy(gpu=("binpack", "mutex"))
    assert (draft.seen, draft.core_totals) == ({}, {})


def test_an_exact_vendor_s_choice_names_the_versions_it_saw() -> None:
    assert drafted(exact=True).seen == {CARD.uuid: 7}


def test_cores_that_a_request_counts_otherwise_are_reported() -> None:
    draft = drafted(need=lambda request, selection, card: Need(300, 30, of_core=100))
    assert draft.core_totals == {CARD.uuid: 100}
