"""Requests of a container to each vendor (protocol 1.1 to 1.16, "Request").

A request is a dict: `vendor`, `count`, `memory` (MiB, 0 when not given), `percent` (None when not
given), `cores`, and for some vendors `extra`. The resource names are those of the chart.
"""

from collections.abc import Callable
from typing import Any

from hamicommon.k8s.types import Json

from tests.reference.amounts import LARGEST, Malformed, read_written, whole, within

Request = dict[str, Any]

ASCEND = (
    "Ascend910A",
    "Ascend910B2",
    "Ascend910B3",
    "Ascend910B4-1",
    "Ascend910B4",
    "Ascend310P",
    "Ascend910C",
)
ILUVATAR = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")


def request(vendor: str, count: int, **fields: Any) -> Request:
    """Build a request with only the given fields."""
    return {"vendor": vendor, "count": count, "memory": 0, "percent": None, "cores": 0} | fields


def nvidia(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.1."""
    count = within(whole(container, "nvidia.com/gpu"), 0)
    if not count:
        return None
    memory = within(whole(container, "nvidia.com/gpumem"), 0) or 0
    percent = whole(container, "nvidia.com/gpumem-percentage")
    if percent is not None:
        percent = min(percent, 100) if percent > 0 else None
    if not memory and percent is None:
        percent = 100
    cores = within(whole(container, "nvidia.com/gpucores"), 0) or 0
    return request("NVIDIA", count, memory=memory, percent=percent, cores=cores)


def amd(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.2."""
    count = within(whole(container, "amd.com/gpu", limits_only=True), 0)
    if not count:
        return None
    memory = within(whole(container, "amd.com/gpumem", limits_only=True), 0) or 0
    cores = within(whole(container, "amd.com/gpucores", limits_only=True), 1, 100)
    return request("AMD", count, memory=memory, cores=100 if cores is None else cores)


def mlu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.3."""
    count = within(whole(container, "cambricon.com/vmlu"), 0)
    if not count:
        return None
    units = within(whole(container, "cambricon.com/mlu.smlu.vmemory"), 0, LARGEST // 256) or 0
    cores = within(whole(container, "cambricon.com/mlu.smlu.vcore"), 0)
    return request(
        "MLU",
        count,
        memory=units * 256,
        percent=None if units else 100,
        cores=100 if cores is None else cores,
    )


def dcu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.4."""
    count = within(whole(container, "hygon.com/dcunum"), 0)
    if not count:
        return None
    memory = within(whole(container, "hygon.com/dcumem"), 0) or 0
    cores = within(whole(container, "hygon.com/dcucores"), 0)
    return request(
        "DCU",
        count,
        memory=memory,
        percent=None if memory else 100,
        cores=100 if cores is None else cores,
    )


def iluvatar(chip: str) -> Callable[[Json, Json], Request | None]:
    """Sheet 1.5."""

    def read(container: Json, annotations: Json) -> Request | None:
        count = within(whole(container, f"iluvatar.ai/{chip}-vgpu"), 0)
        if not count:
            return None
        units = within(whole(container, f"iluvatar.ai/{chip}.vMem"), 0, LARGEST // 256) or 0
        cores = within(whole(container, f"iluvatar.ai/{chip}.vCore"), 0) or 0
        return request(chip, count, memory=units * 256, percent=None if units else 100, cores=cores)

    return read


def mthreads(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.6: memory and cores are for all cards together."""
    count = within(whole(container, "mthreads.com/vgpu"), 0)
    if not count:
        return None
    units = within(whole(container, "mthreads.com/sgpu-memory"), 0, LARGEST // 512) or 0
    cores = within(whole(container, "mthreads.com/sgpu-core"), 0) or 0
    memory = units * 512 // count
    return request(
        "Mthreads", count, memory=memory, percent=None if memory else 100, cores=cores // count
    )


def metax_gpu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.7."""
    count = within(whole(container, "metax-tech.com/gpu"), 0)
    return request("Metax-GPU", count, percent=100, cores=100) if count else None


def metax_sgpu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.8: memory with a letter in it is bytes, without one it is GiB."""
    count = within(whole(container, "metax-tech.com/sgpu", limits_only=True), 0)
    if not count:
        return None
    cores = within(whole(container, "metax-tech.com/vcore", limits_only=True), 0)
    amount = read_written(container, "metax-tech.com/vmemory", limits_only=True)
    number = whole(container, "metax-tech.com/vmemory", limits_only=True) or 0
    has_unit = any(letter.isalpha() for letter in str(amount))
    memory = number // 1024 // 1024 if has_unit else number * 1024
    return request(
        "Metax-SGPU",
        count,
        memory=memory,
        percent=None if memory else 100,
        cores=100 if cores is None else cores,
        extra={
            "class": annotations.get("metax-tech.com/sgpu-app-class", ""),
            "qos": annotations.get("metax-tech.com/sgpu-qos-policy", ""),
            "topology": annotations.get("metax-tech.com/sgpu-topology-aware", ""),
        },
    )


def kunlun(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.9."""
    count = within(whole(container, "kunlunxin.com/xpu"), 0)
    return request("kunlun", count, percent=100) if count else None


def xpu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.10."""
    count = within(whole(container, "kunlunxin.com/vxpu"), 0)
    if not count:
        return None
    asked = within(whole(container, "kunlunxin.com/vxpu-memory"), 0) or 0
    memory = 98304
    if 0 < asked <= 24576:
        memory = 24576
    elif 0 < asked <= 49152:
        memory = 49152
    return request("XPU", count, memory=memory, cores=memory * 100 // 98304)


def gcu(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.11."""
    count = within(whole(container, "enflame.com/gcu"), 0)
    return request("GCU", count, memory=100, percent=100, cores=100) if count else None


def enflame(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.12: by slice size, or by memory and cores."""
    size = within(whole(container, "enflame.com/drs-gcu"), 1)
    if size is not None:
        return request("Enflame", 1, extra={"size": size})
    memory = within(whole(container, "enflame.com/gcu-memory"), 0) or 0
    cores = within(whole(container, "enflame.com/gcu-core"), 0, 100) or 0
    if not memory and not cores:
        return None
    return request("Enflame", 1, extra={"memory": memory, "cores": cores})


def neuron(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.13, for nodes with two cores per device."""
    count = within(whole(container, "aws.amazon.com/neuron"), 0)
    if count:
        return request("AWSNeuron", count, cores=2)
    cores = within(whole(container, "aws.amazon.com/neuroncore"), 0)
    if not cores:
        return None
    if cores <= 2:
        return request("AWSNeuron", 1, cores=cores)
    if cores % 2:
        raise Malformed(f"{cores} cores are no multiple of 2")
    return request("AWSNeuron", cores // 2, cores=2)


def vastai(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.14."""
    count = within(whole(container, "vastaitech.com/va"), 0)
    return request("Vastai", count, percent=100) if count else None


def biren(container: Json, annotations: Json) -> Request | None:
    """Sheet 1.15."""
    count = within(whole(container, "birentech.com/gpu"), 0)
    return request("Biren", count, percent=100) if count else None


def ascend(chip: str) -> Callable[[Json, Json], Request | None]:
    """Sheet 1.16."""

    def read(container: Json, annotations: Json) -> Request | None:
        count = within(whole(container, f"huawei.com/{chip}"), 0)
        if not count:
            return None
        memory = within(whole(container, f"huawei.com/{chip}-memory"), 0) or 0
        cores = within(whole(container, f"huawei.com/{chip}-core"), 0) or 0
        soft = annotations.get("huawei.com/vnpu-mode") == "hami-core"
        return request(
            chip,
            count,
            memory=memory,
            percent=None if memory else 100,
            cores=cores,
            extra={"soft": soft},
        )

    return read


READERS: dict[str, Callable[[Json, Json], Request | None]] = {
    "NVIDIA": nvidia,
    "MLU": mlu,
    "DCU": dcu,
    "GCU": gcu,
    "Enflame": enflame,
    "Mthreads": mthreads,
    "Metax-GPU": metax_gpu,
    "Metax-SGPU": metax_sgpu,
    "kunlun": kunlun,
    "XPU": xpu,
    "AWSNeuron": neuron,
    "AMD": amd,
    "Vastai": vastai,
    "Biren": biren,
    **{chip: ascend(chip) for chip in ASCEND},
    **{chip: iluvatar(chip) for chip in ILUVATAR},
}
"""In HAMi's order of registration (protocol 0)."""


def requests_of(pod: Json) -> list[tuple[str, list[Request]]]:
    """Per container, init containers first: its role, and its requests to each vendor.

    Raises: Malformed.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    spec = pod.get("spec") or {}
    found: list[tuple[str, list[Request]]] = []
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or []:
            role = "app"
            if key == "initContainers":
                role = "sidecar" if container.get("restartPolicy") == "Always" else "init"
            asked = [read(container, annotations) for read in READERS.values()]
            found.append((role, [each for each in asked if each is not None]))
    return found
