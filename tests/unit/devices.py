"""Cards of nodes, for any test that needs one."""

from __future__ import annotations

from typing import Any

from hami_metrics.domain.cluster import ClusterCard
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid


def a_device(uuid: str = "GPU-0", **fields: Any) -> GpuDevice:
    """Return an A100 with 10 slots of 81920 MiB, but for the fields that are given."""
    card: dict[str, Any] = {
        "uuid": GpuUuid(uuid),
        "index": 0,
        "vendor": "NVIDIA",
        "type": "NVIDIA A100",
        "slots": 10,
        "memory_mib": 81920,
        "core_percent": 100,
    }
    return GpuDevice(**card | fields)


def a_cluster_card(**fields: Any) -> ClusterCard:
    """Return an idle A100 of 81920 MiB as metrics read it, but for the fields that are given."""
    idle = {"used_slots": 0, "used_memory_mib": 0, "used_core_percent": 0}
    state = {"healthy": True, "cordoned": False}
    card: dict[str, Any] = {
        "node": "n0",
        "uuid": "GPU-0",
        "index": 0,
        "type": "A100",
        "slots": 10,
        "memory_mib": 81920,
        "core_percent": 100,
    }
    return ClusterCard(**card | idle | state | fields)
