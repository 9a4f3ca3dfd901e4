"""Binary layout of shared regions, as in `native/libvgpu/include/vgpu_region.h`.

libvgpu and HAMi-core 1.x write version 1 (2008952 bytes or more); version 0 is HAMi-core's older
file. The offsets are facts of HAMi-core, little endian, LP64. `reader.py` uses the two forms at the
end.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

MAGIC = 19920718
MAX_DEVICES = 16
MAX_SLOTS = 1024
UUID_BYTES = 96
# Only libvgpu: devices 16 to 31 have the same structure again after the first, and so on.
BANKS = 4
BANK_BYTES = 2011136
FIRST_KERNEL_SLOT = 4
"""Slot in which libvgpu writes the region's first kernel, in a field that HAMi does not use."""
MAX_BYTES = BANKS * BANK_BYTES
"""Maximum bytes of a region; data that tenants write after it is ignored."""


class MemoryV1(ctypes.LittleEndianStructure):
    """Memory of one process on one card."""

    _fields_ = (
        ("context_bytes", ctypes.c_uint64),
        ("module_bytes", ctypes.c_uint64),
        ("buffer_bytes", ctypes.c_uint64),
        ("offset_bytes", ctypes.c_uint64),
        ("total_bytes", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 3),
    )


class UtilizationV1(ctypes.LittleEndianStructure):
    """Use of one card by one process."""

    _fields_ = (
        ("decoder_percent", ctypes.c_uint64),
        ("encoder_percent", ctypes.c_uint64),
        ("sm_percent", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 3),
    )


class SlotV1(ctypes.LittleEndianStructure):
    """One process; `sequence` is odd while it is being written."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("memory", MemoryV1 * MAX_DEVICES),
        ("monitor_used_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("utilization", UtilizationV1 * MAX_DEVICES),
        ("status", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("sequence", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 2),
    )


class HeadV1(ctypes.LittleEndianStructure):
    """Fields before the slots."""

    _fields_ = (
        ("magic", ctypes.c_int32),
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("sm_init", ctypes.c_int32),
        ("owner_pid", ctypes.c_uint64),
        ("semaphore", ctypes.c_uint8 * 32),
        ("device_count", ctypes.c_uint64),
        ("uuids", (ctypes.c_char * UUID_BYTES) * MAX_DEVICES),
        ("limit_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("sm_limit_percent", ctypes.c_uint64 * MAX_DEVICES),
    )


class TailV1(ctypes.LittleEndianStructure):
    """Fields after the slots."""

    _fields_ = (
        ("slot_count", ctypes.c_int32),
        ("utilization_switch", ctypes.c_int32),
        ("recent_kernel", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("last_kernel_epoch_s", ctypes.c_uint64),
        ("second_semaphore", ctypes.c_uint8 * 32),
    )


class MemoryV0(ctypes.LittleEndianStructure):
    """MemoryV1 without the unused fields."""

    _fields_ = MemoryV1._fields_[:5]


class UtilizationV0(ctypes.LittleEndianStructure):
    """UtilizationV1 without the unused fields."""

    _fields_ = UtilizationV1._fields_[:3]


class SlotV0(ctypes.LittleEndianStructure):
    """One process, without `sequence`."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("memory", MemoryV0 * MAX_DEVICES),
        ("monitor_used_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("utilization", UtilizationV0 * MAX_DEVICES),
        ("status", ctypes.c_int32),
        ("padding", ctypes.c_int32),
    )


class HeadV0(ctypes.LittleEndianStructure):
    """Fields before the slots, without the version."""

    _fields_ = (
        ("magic", ctypes.c_int32),
        ("sm_init", ctypes.c_int32),
        ("owner_pid", ctypes.c_uint32),
        ("semaphore", ctypes.c_uint8 * 32),
        ("padding", ctypes.c_uint8 * 4),
        ("device_count", ctypes.c_uint64),
        ("uuids", (ctypes.c_char * UUID_BYTES) * MAX_DEVICES),
        ("limit_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("sm_limit_percent", ctypes.c_uint64 * MAX_DEVICES),
    )


class TailV0(ctypes.LittleEndianStructure):
    """Fields after the slots."""

    _fields_ = TailV1._fields_[:4]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionForm:
    """Offsets of one version of the layout."""

    uuids_at: int
    limits_at: int
    sm_limits_at: int
    slots_at: int
    tail_at: int
    tail_size: int
    slot_size: int
    memory_at: int
    memory_size: int
    utilization_at: int
    utilization_size: int
    sm_at: int
    status_at: int
    last_kernel_at: int | None = None
    sequence_at: int | None = None
    """Offset of the sequence; None: this version has none."""
    started_at: int | None = None
    first_kernel_at: int | None = None
    """Offset of the first kernel, from the beginning of the file."""


def _form(head: Any, slot: Any, memory: Any, utilization: Any, tail: Any) -> RegionForm:
    """Return the offsets from the structures of one version."""
    slots_at = ctypes.sizeof(head)
    return RegionForm(
        uuids_at=head.uuids.offset,
        limits_at=head.limit_bytes.offset,
        sm_limits_at=head.sm_limit_percent.offset,
        slots_at=slots_at,
        tail_at=slots_at + MAX_SLOTS * ctypes.sizeof(slot),
        tail_size=ctypes.sizeof(tail),
        slot_size=ctypes.sizeof(slot),
        memory_at=slot.memory.offset,
        memory_size=ctypes.sizeof(memory),
        utilization_at=slot.utilization.offset,
        utilization_size=ctypes.sizeof(utilization),
        sm_at=utilization.sm_percent.offset,
        status_at=slot.status.offset,
    )


V0 = _form(HeadV0, SlotV0, MemoryV0, UtilizationV0, TailV0)
_V1 = _form(HeadV1, SlotV1, MemoryV1, UtilizationV1, TailV1)
V1 = replace(
    _V1,
    last_kernel_at=TailV1.last_kernel_epoch_s.offset,
    sequence_at=SlotV1.sequence.offset,
    # Ours only, in fields that HAMi leaves unused: `vgpu_region.h`.
    started_at=_V1.memory_at + MemoryV1.unused.offset,
    first_kernel_at=_V1.slots_at
    + FIRST_KERNEL_SLOT * _V1.slot_size
    + _V1.utilization_at
    + UtilizationV1.unused.offset,
)
SIZE_V0 = V0.tail_at + V0.tail_size
SIZE_V1 = V1.tail_at + V1.tail_size
