"""Read, create and destroy MIG instances through NVML; blocking.

`library.py` calls it in a thread, one round at a time, with the driver loaded. A call that outlives
its caller continues: the next check finds the instance that it makes (`mig_partition.plan`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict
from hamicommon.k8s.mig import MigSlice

from hami_node_agent.adapters.nvml.driver import text
from hami_node_agent.adapters.nvml.library import NvmlProbe
from hami_node_agent.devices.mig_partition import (
    Instance,
    MigInstance,
    MigLayout,
    OwnInstance,
    ProfileFacts,
    profile_name,
    profile_of,
)
from hami_node_agent.devices.offer import CardFacts

logger = logging.getLogger(__name__)

UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
ABSENT = (*UNSUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)
"""Errors by which drivers report that the card lacks a profile."""
_MAX_COMPUTE_INSTANCES = 8
_SHARED_ENGINES = 0


def read_layout(cards: Sequence[CardFacts]) -> MigLayout:
    """Read the instances of these cards. Raises: NVMLError."""
    mig_cards: set[GpuUuid] = set()
    instances: list[MigInstance] = []
    for card in cards:
        handle = pynvml.nvmlDeviceGetHandleByIndex(card.index)
        if in_mig_mode(handle):
            mig_cards.add(card.uuid)
            instances += _instances_of(card, handle)
    return MigLayout(
        cards=frozenset(card.uuid for card in cards),
        mig_cards=frozenset(mig_cards),
        instances=tuple(instances),
    )


def in_mig_mode(handle: Any) -> bool:
    """Return whether the card is in MIG mode; False if it has none."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as exc:
        if exc.value in UNSUPPORTED:
            return False
        raise


def _handles(card: Any) -> Iterator[Any]:
    """Yield the handles of the card's MIG devices."""
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except pynvml.NVMLError as exc:
            if exc.value != pynvml.NVML_ERROR_NOT_FOUND:
                raise


def _instances_of(card: CardFacts, handle: Any) -> Iterator[MigInstance]:
    memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    for mig in _handles(handle):
        about = pynvml.nvmlDeviceGetAttributes_v2(mig)
        yield MigInstance(
            uuid=text(pynvml.nvmlDeviceGetUUID(mig)),
            card=card.uuid,
            profile=profile_name(
                gpu_slices=int(about.gpuInstanceSliceCount),
                compute_slices=int(about.computeInstanceSliceCount),
                memory_mib=int(about.memorySizeMB),
                card_memory_bytes=memory_bytes,
            ),
            gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(mig)),
            compute_instance=int(pynvml.nvmlDeviceGetComputeInstanceId(mig)),
            minor=card.minor,
            numa=card.numa,
        )


def profiles(handle: Any) -> Iterator[ProfileFacts]:
    """Return the profiles of the card."""
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
    """Return a profile; None if the card lacks it. Older drivers have no names."""
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
    """Return all GPU instances of these cards."""
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
    """List (GPU instance, compute instance, uuid) of the card's MIG devices."""
    return [
        (
            int(pynvml.nvmlDeviceGetGpuInstanceId(mig)),
            int(pynvml.nvmlDeviceGetComputeInstanceId(mig)),
            text(pynvml.nvmlDeviceGetUUID(mig)),
        )
        for mig in _handles(handle)
    ]


class NvmlMigDriver:
    """MIG driver (`MigDriver`) that uses the probe's NVML."""

    def __init__(self, nvml: NvmlProbe) -> None:
        self._nvml = nvml

    async def profiles(self, card: GpuUuid) -> tuple[ProfileFacts, ...]:
        """Return the MIG profiles of the card; an unused card is put into MIG mode.

        Raises: Conflict when that can't be done now, with the reason; Unavailable.
        """
        return await self._nvml.ask("MIG profiles", lambda: _profiles_of(card))

    async def instances(self, cards: Sequence[GpuUuid]) -> tuple[Instance, ...]:
        """Return all GPU instances of these cards. Raises: Unavailable."""
        return await self._nvml.ask("MIG instances", lambda: tuple(instances(cards)))

    async def make(self, card: GpuUuid, part: MigSlice) -> OwnInstance:
        """Create GPU and compute instance of that profile at that place.

        Raises: Conflict when there is no such profile or no room there; Unavailable.
        """
        return await self._nvml.ask("create a MIG instance", lambda: _make(card, part))

    async def destroy(self, instance: Instance) -> None:
        """Destroy a GPU instance with its contents; without effect if it is gone.

        Raises: Conflict while a process uses it; Unavailable.
        """
        await self._nvml.ask("destroy a MIG instance", lambda: _destroy(instance))


def _card(uuid: GpuUuid) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _profiles_of(card: GpuUuid) -> tuple[ProfileFacts, ...]:
    handle = _card(card)
    _require_mode(card, handle)
    return tuple(profiles(handle))


def _require_mode(card: GpuUuid, handle: Any) -> None:
    try:
        current, pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError as exc:
        if exc.value in UNSUPPORTED:
            raise Conflict(f"card {card} does not support MIG") from exc
        raise
    if current:
        return
    if pending:
        raise Conflict(f"card {card} changes to MIG mode only at its next reset")
    users = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    if users:
        pids = ", ".join(str(user.pid) for user in users)
        raise Conflict(f"card {card} is not in MIG mode and is used by processes {pids}")
    activation = pynvml.nvmlDeviceSetMigMode(handle, pynvml.NVML_DEVICE_MIG_ENABLE)
    if activation != pynvml.NVML_SUCCESS:
        reason = pynvml.NVMLError(activation)
        raise Conflict(f"card {card} needs a reset to change to MIG mode: {reason}")
    logger.warning("Put a card into MIG mode", extra={"uuid": card})


def _make(card: GpuUuid, part: MigSlice) -> OwnInstance:
    handle = _card(card)
    known = tuple(profiles(handle))
    profile = profile_of(part.profile, known)
    where = f"MIG {part.profile} at {part.start}+{part.size} of card {card}"
    if profile is None:
        names = ", ".join(each.name for each in known)
        raise Conflict(f"{where}: the card has no such profile; its profiles: {names}")
    if (part.start, part.size) not in profile.placements:
        places = ", ".join(f"{start}+{size}" for start, size in profile.placements)
        raise Conflict(f"{where}: the profile can't start there; possible starts: {places}")
    place = pynvml.c_nvmlGpuInstancePlacement_t(start=part.start, size=part.size)
    try:
        gpu = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
            handle, profile.profile_id, byref(place)
        )
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES:
            raise Conflict(f"{where}: the card has no room for it") from exc
        raise
    try:
        return _create_compute_instance(handle, gpu, profile, OwnInstance(card=card, part=part))
    except BaseException:  # also a stop: no other code knows of it
        _undo(gpu)
        raise


def _create_compute_instance(
    handle: Any, gpu: Any, profile: ProfileFacts, wanted: OwnInstance
) -> OwnInstance:
    """Return the GPU instance with one compute instance that has all its slices."""
    info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
        gpu, _compute_number(profile), _SHARED_ENGINES, version=1
    )
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(gpu, info.id)
    gpu_id = int(pynvml.nvmlGpuInstanceGetInfo(gpu).id)
    compute_id = int(pynvml.nvmlComputeInstanceGetInfo_v2(compute).id)
    for found_gpu, found_compute, uuid in mig_devices(handle):
        if (found_gpu, found_compute) == (gpu_id, compute_id):
            return OwnInstance(
                card=wanted.card,
                part=wanted.part,
                uuid=uuid,
                gpu_instance=gpu_id,
                compute_instance=compute_id,
            )
    raise Conflict(
        f"GPU instance {gpu_id} of card {wanted.card} was created but the driver shows no MIG "
        "device for it"
    )


def _compute_number(profile: ProfileFacts) -> int:
    number = getattr(pynvml, f"NVML_COMPUTE_INSTANCE_PROFILE_{profile.slices}_SLICE", None)
    if number is None:
        raise Conflict(f"profile {profile.name} has {profile.slices} slices, which is not known")
    return int(number)


def _undo(gpu: Any) -> None:
    """Destroy a half-made instance; if that fails, `mig_partition.plan` does it later."""
    try:
        _empty(gpu)
        pynvml.nvmlGpuInstanceDestroy(gpu)
    except pynvml.NVMLError as exc:
        logger.warning("Failed to remove a partly created MIG instance", extra={"error": str(exc)})


def _destroy(instance: Instance) -> None:
    try:
        gpu = pynvml.nvmlDeviceGetGpuInstanceById(_card(instance.card), instance.gpu_instance)
        _empty(gpu)
        pynvml.nvmlGpuInstanceDestroy(gpu)
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
            return
        if exc.value == pynvml.NVML_ERROR_IN_USE:
            raise Conflict(
                f"GPU instance {instance.gpu_instance} of card {instance.card} is used by a process"
            ) from exc
        raise


def _empty(gpu: Any) -> None:
    for number in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gpu, number, _SHARED_ENGINES, version=1
            )
        except pynvml.NVMLError as exc:
            if exc.value in ABSENT:
                continue
            raise
        count = c_uint(_MAX_COMPUTE_INSTANCES)
        room = (pynvml.c_nvmlComputeInstance_t * _MAX_COMPUTE_INSTANCES)()
        pynvml.nvmlGpuInstanceGetComputeInstances(gpu, info.id, room, byref(count))
        for compute in room[: count.value]:
            pynvml.nvmlComputeInstanceDestroy(compute)
