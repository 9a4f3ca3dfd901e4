"""What cards can be cut into and how they are cut, through NVML, blocking.

`mig_cutting.py` makes and destroys instances by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml
from hamicommon.domain.ids import GpuUuid

from hami_node_agent.adapters.nvml.mig import in_mig_mode
from hami_node_agent.adapters.nvml.samples import text
from hami_node_agent.devices.mig_partition import Instance, ProfileFacts

UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
ABSENT = (*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
"""What drivers report of a profile that the card does not have."""


def profiles(handle: Any) -> Iterator[ProfileFacts]:
    """The profiles that the card has."""
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(handle, number)
        if info is None:
            continue
        named = text(getattr(info, "name", "")).removeprefix("MIG ")
        yield ProfileFacts(
            number=number,
            profile_id=int(info.id),
            name=named,
            slices=int(info.sliceCount),
            memory_mib=int(info.memorySizeMB),
            multiprocessors=int(info.multiprocessorCount),
            instances=int(info.instanceCount),
            placements=_placements(handle, int(info.id)),
        )


def _profile_info(handle: Any, number: int) -> Any:
    """None when the card has no such profile; older drivers have no names."""
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, version=version)
        except pynvml.NVMLError as exc:
            if version == 2 and exc.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                continue
            if exc.value in ABSENT:
                return None
            raise
    return None


def _placements(handle: Any, profile_id: int) -> tuple[tuple[int, int], ...]:
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, byref(count))
    return tuple(sorted((int(place.start), int(place.size)) for place in places))


def instances(cards: Sequence[GpuUuid]) -> Iterator[Instance]:
    """All GPU instances of these cards."""
    for card in cards:
        handle = pynvml.nvmlDeviceGetHandleByUUID(card)
        if not in_mig_mode(handle):
            continue
        named = mig_devices(handle)
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            info = _profile_info(handle, number)
            if info is None:
                continue
            for each in _gpu_instances(handle, info):
                about = pynvml.nvmlGpuInstanceGetInfo(each)
                yield Instance(
                    card=card,
                    gpu_instance=int(about.id),
                    start=int(about.placement.start),
                    size=int(about.placement.size),
                    devices=tuple(
                        (compute, uuid) for gpu, compute, uuid in named if gpu == int(about.id)
                    ),
                )


def _gpu_instances(handle: Any, info: Any) -> list[Any]:
    count = c_uint(int(info.instanceCount))
    room = (pynvml.c_nvmlGpuInstance_t * int(info.instanceCount))()
    pynvml.nvmlDeviceGetGpuInstances(handle, info.id, room, byref(count))
    return list(room[: count.value])


def mig_devices(handle: Any) -> list[tuple[int, int, str]]:
    """(GPU instance, compute instance, uuid) of the card's MIG devices."""
    found = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as exc:
            if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        gpu = int(pynvml.nvmlDeviceGetGpuInstanceId(mig))
        compute = int(pynvml.nvmlDeviceGetComputeInstanceId(mig))
        found.append((gpu, compute, text(pynvml.nvmlDeviceGetUUID(mig))))
    return found
