"""Random pods of init containers, sidecars and app containers, and nodes that they fill."""

from random import Random

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.types import Json

CAPACITY_MIB = 16_000


def cards(r: Random) -> list[DeviceUsage]:
    """One to four cards of a node, some of which have few slots."""
    return [
        DeviceUsage(
            device=GpuDevice(
                uuid=GpuUuid(f"GPU-{number}"),
                index=number,
                vendor="NVIDIA",
                type="NVIDIA A100",
                slots=r.choice([2, 3, 10]),
                memory_mib=CAPACITY_MIB,
                core_percent=100,
            )
        )
        for number in range(r.randint(1, 4))
    ]


def pod(r: Random, number: int) -> Json:
    """Up to four init containers and sidecars in any order, and up to three app containers."""
    init = [_container(r, f"i{n}") for n in range(r.choice([0, 1, 2, 3, 4]))]
    for each in init:
        if r.random() < 0.5:
            each["restartPolicy"] = "Always"
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "team",
            "uid": f"pod-{number}",
            "annotations": {
                "hami.io/gpu-scheduler-policy": r.choice(["binpack", "spread", "mutex"]),
            },
        },
        "spec": {
            "initContainers": init,
            "containers": [_container(r, f"c{n}") for n in range(r.choice([1, 1, 2, 3]))],
        },
    }


def _container(r: Random, name: str) -> Json:
    limits: Json = {}
    if r.random() < 0.8:
        limits["nvidia.com/gpu"] = str(r.choice([1, 1, 1, 2, 3]))
        limits["nvidia.com/gpumem"] = str(r.choice([500, 1000, 3000, 6000, 12_000]))
        if r.random() < 0.6:
            limits["nvidia.com/gpucores"] = str(r.choice([0, 10, 30, 50, 100]))
    return {"name": name, "image": "x", "resources": {"limits": limits}}
