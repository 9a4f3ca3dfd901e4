"""Kubernetes objects for the tests of the simulator."""

import json
from datetime import UTC, datetime

from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def every_vendor() -> Vendors:
    """All vendors, also those that HAMi serves only when configured."""
    return Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def node(name: str, *cards: Json, allocatable: int = 10, annotations: Json | None = None) -> Json:
    """A node with NVIDIA cards; fields of `cards` override a healthy card of 8000 MiB."""
    register = [
        {
            "id": f"GPU-{name}-{index}",
            "index": index,
            "count": 10,
            "devmem": 8000,
            "devcore": 100,
            "type": "NVIDIA A10",
            "mode": "hami-core",
            "health": True,
        }
        | fields
        for index, fields in enumerate(cards)
    ]
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"hami.io/node-nvidia-register": json.dumps(register)}
            | (annotations or {}),
        },
        "status": {"allocatable": {"nvidia.com/gpu": str(allocatable)}},
    }


def asking(*limits: Json, init: tuple[Json, ...] = (), annotations: Json | None = None) -> Json:
    """A pod with one container per entry; the entries are their limits."""
    return {
        "kind": "Pod",
        "metadata": {"name": "new", "uid": "u", "annotations": annotations or {}},
        "spec": {
            "initContainers": [_container(f"i{n}", each) for n, each in enumerate(init)],
            "containers": [_container(f"c{n}", each) for n, each in enumerate(limits)],
        },
    }


def _container(name: str, limits: Json) -> Json:
    return {"name": name, "resources": {"limits": limits}}


def placed_pod(
    devices: str,
    *,
    on: str,
    init: int = 0,
    phase: str = "Running",
    key: str = "hami.io/vgpu-devices-allocated",
) -> Json:
    """A pod that holds slices; `devices` is HAMi's text."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": "old",
            "namespace": "team",
            "annotations": {"hami.io/vgpu-node": on, key: devices},
        },
        "spec": {
            "initContainers": [{"name": f"i{n}"} for n in range(init)],
            "containers": [{"name": "c"}],
        },
        "status": {"phase": phase},
    }


def gpus(count: int = 1, memory: int | str = 0, cores: int | None = None) -> Json:
    """Limits of a container."""
    limits: Json = {"nvidia.com/gpu": count}
    if memory:
        limits["nvidia.com/gpumem"] = memory
    if cores is not None:
        limits["nvidia.com/gpucores"] = cores
    return limits
