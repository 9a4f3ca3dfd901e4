"""Cut a simulated card through pynvml; test_nvml_mig.py runs it in a separate process.

Commands are arguments. The answers are one JSON list on stdout.
"""

import json
import sys
from collections.abc import Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml


def card(index: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(int(index))


def profiles(index: str) -> list[Any]:
    found = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card(index), number)
        except pynvml.NVMLError_NotSupported:
            continue
        count = c_uint(0)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card(index), info.id, None, byref(count))
        places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            card(index), info.id, places, byref(count)
        )
        starts = [place.start for place in places]
        found.append([str(info.name), info.instanceCount, info.memorySizeMB, starts])
    return found


def make(index: str, profile: str, start: str) -> list[Any]:
    """Create a MIG instance; return its GPU instance, compute instance and uuid."""
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card(index), int(profile))
    count = c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card(index), info.id, None, byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card(index), info.id, places, byref(count))
    place = pynvml.c_nvmlGpuInstancePlacement_t(start=int(start), size=places[0].size)
    gpu = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card(index), info.id, byref(place))
    part = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu, int(profile), 0, version=1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(gpu, part.id)
    about = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    return [pynvml.nvmlGpuInstanceGetInfo(gpu).id, about.id, devices(index)[-1][0]]


def destroy(index: str, gpu_instance: str) -> None:
    gpu = pynvml.nvmlDeviceGetGpuInstanceById(card(index), int(gpu_instance))
    room = (pynvml.c_nvmlComputeInstance_t * 7)()
    for profile in range(5):
        count = c_uint(7)
        pynvml.nvmlGpuInstanceGetComputeInstances(gpu, profile, room, byref(count))
        for compute in room[: count.value]:
            pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(gpu)


def devices(index: str) -> list[Any]:
    found = []
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card(index))):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card(index), position)
        except pynvml.NVMLError_NotFound:
            continue
        memory = pynvml.nvmlDeviceGetMemoryInfo(mig).total >> 20
        found.append(
            [pynvml.nvmlDeviceGetUUID(mig), pynvml.nvmlDeviceGetGpuInstanceId(mig), memory]
        )
    return found


def mode(index: str, wanted: str) -> list[int]:
    activation = pynvml.nvmlDeviceSetMigMode(card(index), int(wanted))
    return [activation, *pynvml.nvmlDeviceGetMigMode(card(index))]


CALLS = {f.__name__: f for f in (profiles, make, destroy, devices, mode)}


def run(arguments: Sequence[str]) -> None:
    """Run calls separated by commas, each a name and its arguments."""
    pynvml.nvmlInit()
    answers: list[Any] = []
    for call in " ".join(arguments).split(","):
        name, *arguments = call.split()
        try:
            answers.append(CALLS[name](*arguments))
        except pynvml.NVMLError as exc:
            answers.append(type(exc).__name__)
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    run(sys.argv[1:])
