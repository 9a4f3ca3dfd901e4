"""Region files as libraries write them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from hami_node_agent.usage.regions import layout as layout

from tests.unit.node_agent.builders import CARD_A

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One process on the first card."""

    pid: int = 7
    host_pid: int = 0
    started_ticks: int = 0
    status: int = 1
    context_bytes: int = 1
    module_bytes: int = 2
    buffer_bytes: int = 3
    total_bytes: int = 6
    sm_percent: int = 11
    sequence: int = 0


def v1_file(
    path: Path,
    *slots: Slot,
    slot_count: int | None = None,
    trailing: int = 1,
    uuids: tuple[str, ...] = (CARD_A,),
    recent_kernel: int = 2,
    utilization_switch: int = 1,
    last_kernel_epoch_s: int = 1_700_000_000,
    first_kernel_epoch_ms: int = 0,
) -> Path:
    """Version 1.2, by default with a living and an exited process."""
    slots = slots or (Slot(), Slot(pid=8, status=0))
    head = layout.HeadV1(magic=layout.MAGIC, major=1, minor=2, device_count=len(uuids))
    for number, uuid in enumerate(uuids):
        head.uuids[number].value = uuid.encode()
        head.limit_bytes[number] = 4096 * MIB
        head.sm_limit_percent[number] = 30
    tail = layout.TailV1(
        slot_count=len(slots) if slot_count is None else slot_count,
        utilization_switch=utilization_switch,
        recent_kernel=recent_kernel,
        priority=1,
        last_kernel_epoch_s=last_kernel_epoch_s,
    )
    with path.open("wb") as file:
        file.truncate(layout.SIZE_V1 + trailing)
        file.write(bytes(head))
        for slot in slots:
            file.write(_slot_v1(slot))
        file.seek(layout.V1.tail_at)
        file.write(bytes(tail))
        file.seek(layout.V1.first_kernel_at or 0)
        file.write(first_kernel_epoch_ms.to_bytes(8, "little"))
    return path


def _slot_v1(given: Slot) -> bytes:
    slot = layout.SlotV1(
        pid=given.pid, host_pid=given.host_pid, status=given.status, sequence=given.sequence
    )
    slot.memory[0] = layout.MemoryV1(
        context_bytes=given.context_bytes,
        module_bytes=given.module_bytes,
        buffer_bytes=given.buffer_bytes,
        total_bytes=given.total_bytes,
    )
    slot.memory[0].unused[0] = given.started_ticks
    slot.utilization[0].sm_percent = given.sm_percent
    return bytes(slot)


def v0_file(path: Path) -> Path:
    """HAMi-core's older file, with one process."""
    body = bytearray(layout.SIZE_V0 + 1)
    head = layout.HeadV0(magic=layout.MAGIC)
    head.uuids[0].value = CARD_A.encode()
    slot = layout.SlotV0(pid=1, status=1)
    slot.memory[0].total_bytes = 6
    body[: ctypes.sizeof(head)] = bytes(head)
    body[layout.V0.slots_at : layout.V0.slots_at + ctypes.sizeof(slot)] = bytes(slot)
    body[layout.V0.tail_at : layout.SIZE_V0] = bytes(layout.TailV0(slot_count=1))
    path.write_bytes(body)
    return path
