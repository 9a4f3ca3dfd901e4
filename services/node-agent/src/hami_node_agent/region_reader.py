"""Reads the shared regions that libvgpu keeps in each container's cache directory.

In: `$HOOK_PATH/vgpu/containers/<dir>/*.cache`. Out: `Region` values; `usage.py` turns them into
samples. The directory belongs to the tenant, who may put anything in it: links and odd files are
not opened, counts are clamped, and a file that is no region is no region.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hami_node_agent import region_layout as layout

# Bytes of the uuid that are shown, as HAMi's monitor does: `GPU-` and 36 characters.
UUID_SHOWN = 40
# A slot that is being written is read again; after this many times the last reading must do.
MAX_READS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionDevice:
    """One card in a region, summed over the container's processes."""

    index: int
    uuid: str
    limit_bytes: int
    core_limit_percent: int
    used_bytes: int
    context_bytes: int
    module_bytes: int
    buffer_bytes: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One container's region at one moment."""

    devices: tuple[RegionDevice, ...]
    processes: int
    last_kernel_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Format:
    slots_at: int
    tail_at: int
    head: Any
    slot: Any
    tail: Any


_V1 = _Format(layout.SLOTS_AT_V1, layout.TAIL_AT_V1, layout.HeadV1, layout.SlotV1, layout.TailV1)
_V0 = _Format(layout.SLOTS_AT_V0, layout.TAIL_AT_V0, layout.HeadV0, layout.SlotV0, layout.TailV0)


def region_file(directory: Path) -> Path | None:
    """The region file of a container's directory, or None while there is none."""
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names are all we want
    except OSError:
        return None
    caches = [n for n in names if n.endswith(".cache") and "libvgpu.so" not in n]
    return directory / caches[0] if caches else None


def read_region(path: Path) -> Region | None:
    """Reads a region; None when the file is not one, or not ready yet."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        chosen = _format(descriptor, found.st_size)
        return None if chosen is None else _read(descriptor, chosen)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _format(descriptor: int, size: int) -> _Format | None:
    words = os.pread(descriptor, 8, 0)
    if len(words) < 8 or int.from_bytes(words[:4], "little") != layout.MAGIC:
        return None
    if layout.SIZE_V0 <= size < layout.SIZE_V1:
        return _V0
    major = int.from_bytes(words[4:], "little")
    return _V1 if major == 1 and size >= layout.SIZE_V1 else None


def _read(descriptor: int, form: _Format) -> Region:
    head = _struct(descriptor, form.head, 0)
    tail = _struct(descriptor, form.tail, form.tail_at)
    count = max(0, min(int(tail.slot_count), layout.MAX_SLOTS))
    slots = [_slot(descriptor, form, number) for number in range(count)]
    running = [slot for slot in slots if slot.status != 0]
    epoch_s = int(getattr(tail, "last_kernel_epoch_s", 0))
    return Region(
        devices=tuple(_devices(head, running)),
        processes=len(running),
        last_kernel_at=_moment(epoch_s),
    )


def _slot(descriptor: int, form: _Format, number: int) -> Any:
    offset = form.slots_at + number * ctypes.sizeof(form.slot)
    slot = _struct(descriptor, form.slot, offset)
    for _ in range(MAX_READS - 1):
        again = _struct(descriptor, form.slot, offset)
        # Version 0 has no sequence: then two equal readings must do.
        before, after = getattr(slot, "sequence", 0), getattr(again, "sequence", 0)
        slot = again
        if before == after and after % 2 == 0:
            break
    return slot


def _struct(descriptor: int, kind: Any, offset: int) -> Any:
    data = os.pread(descriptor, ctypes.sizeof(kind), offset)
    if len(data) < ctypes.sizeof(kind):
        raise OSError(f"region ends at {offset + len(data)}")
    return kind.from_buffer_copy(data)


def _devices(head: Any, running: list[Any]) -> Iterable[RegionDevice]:
    for index in range(layout.MAX_DEVICES):
        uuid = _uuid(bytes(head.uuids[index].raw))
        if not uuid:
            continue
        memory = [slot.memory[index] for slot in running]
        yield RegionDevice(
            index=index,
            uuid=uuid,
            limit_bytes=int(head.limit_bytes[index]),
            core_limit_percent=int(head.sm_limit_percent[index]),
            used_bytes=sum(m.total_bytes for m in memory),
            context_bytes=sum(m.context_bytes for m in memory),
            module_bytes=sum(m.module_bytes for m in memory),
            buffer_bytes=sum(m.buffer_bytes for m in memory),
            core_percent=sum(slot.utilization[index].sm_percent for slot in running),
        )


def _uuid(raw: bytes) -> str:
    try:
        return raw[:UUID_SHOWN].split(b"\0")[0].decode()
    except UnicodeDecodeError:
        return ""


def _moment(epoch_s: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(epoch_s, UTC) if epoch_s > 0 else None
    except (OverflowError, ValueError, OSError):
        return None
