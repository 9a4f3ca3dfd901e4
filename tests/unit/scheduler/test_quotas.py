"""What slices count in a namespace's quota."""

from __future__ import annotations

from hami_scheduler.quotas import quota_amounts, quota_limits, quota_reason
from hamicommon.deviceconfig import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(DeviceConfig())


def grant(role: str, memory_mib: int, core_percent: int) -> ContainerGrant:
    share = DeviceShare(
        uuid=GpuUuid("GPU-0"), vendor="NVIDIA", memory_mib=memory_mib, core_percent=core_percent
    )
    return ContainerGrant(index=0, name=role, role=role, shares=(share,))  # type: ignore[arg-type]


def test_init_and_app_count_as_the_greater_of_both() -> None:
    amounts = quota_amounts([grant("init", 500, 10), grant("app", 300, 20)], VENDORS)

    assert amounts == {"nvidia.com/gpumem": 500, "nvidia.com/gpucores": 20}


def test_nothing_taken_is_nothing_counted() -> None:
    assert quota_amounts([grant("app", 100, 0)], VENDORS) == {"nvidia.com/gpumem": 100}


def test_limits_are_whole_numbers_and_zero_is_one() -> None:
    quota = {
        "spec": {
            "hard": {
                "limits.nvidia.com/gpumem": "0",
                "limits.nvidia.com/gpucores": "1.5",
                "limits.cpu": "4",
            }
        }
    }

    assert quota_limits(quota, VENDORS) == {"nvidia.com/gpumem": 0}


def test_every_card_of_a_node_is_refused() -> None:
    assert quota_reason(4) == "4/4 ResourceQuotaNotFit"
    assert quota_reason(0) == "node unregistered"
