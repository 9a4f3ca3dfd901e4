import ctypes
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hami_node_agent import region_layout as layout
from hami_node_agent.region_reader import Region, RegionDevice, read_region, region_file

from tests.unit.node_agent.builders import CARD_A

MIB = 1024 * 1024


def v1_file(path: Path, *, slot_count: int = 2, trailing: int = 1) -> Path:
    head = layout.HeadV1(magic=layout.MAGIC, major=1, minor=2, device_count=1)
    head.uuids[0].value = CARD_A.encode()
    head.limit_bytes[0] = 4096 * MIB
    head.sm_limit_percent[0] = 30
    slots = [layout.SlotV1(pid=pid, status=status) for pid, status in ((7, 1), (8, 0))]
    for slot in slots:
        slot.memory[0] = layout.MemoryV1(
            context_bytes=1, module_bytes=2, buffer_bytes=3, total_bytes=6
        )
        slot.utilization[0].sm_percent = 11
    tail = layout.TailV1(slot_count=slot_count, last_kernel_epoch_s=1_700_000_000)
    body = bytearray(layout.SIZE_V1 + trailing)
    body[: ctypes.sizeof(head)] = bytes(head)
    for number, slot in enumerate(slots):
        at = layout.SLOTS_AT_V1 + number * ctypes.sizeof(slot)
        body[at : at + ctypes.sizeof(slot)] = bytes(slot)
    body[layout.TAIL_AT_V1 : layout.TAIL_AT_V1 + ctypes.sizeof(tail)] = bytes(tail)
    path.write_bytes(body)
    return path


DEVICE = RegionDevice(
    index=0,
    uuid=CARD_A,
    limit_bytes=4096 * MIB,
    core_limit_percent=30,
    used_bytes=6,
    context_bytes=1,
    module_bytes=2,
    buffer_bytes=3,
    core_percent=11,
)


@pytest.mark.parametrize("trailing", [0, 1])
def test_running_processes_are_summed_and_exited_ones_are_not(
    tmp_path: Path, trailing: int
) -> None:
    found = read_region(v1_file(tmp_path / "a.cache", trailing=trailing))

    assert found == Region(
        devices=(DEVICE,),
        processes=1,
        last_kernel_at=datetime.fromtimestamp(1_700_000_000, UTC),
    )


@pytest.mark.parametrize("slot_count", [-5, 100_000])
def test_a_count_that_the_tenant_made_up_is_clamped(tmp_path: Path, slot_count: int) -> None:
    found = read_region(v1_file(tmp_path / "a.cache", slot_count=slot_count))

    assert found is not None
    assert found.processes == (0 if slot_count < 0 else 1)


def test_a_file_of_version_0_is_read_too(tmp_path: Path) -> None:
    body = bytearray(layout.SIZE_V0 + 1)
    head = layout.HeadV0(magic=layout.MAGIC)
    head.uuids[0].value = CARD_A.encode()
    slot = layout.SlotV0(pid=1, status=1)
    slot.memory[0].total_bytes = 6
    body[: ctypes.sizeof(head)] = bytes(head)
    body[layout.SLOTS_AT_V0 : layout.SLOTS_AT_V0 + ctypes.sizeof(slot)] = bytes(slot)
    body[layout.TAIL_AT_V0 : layout.SIZE_V0] = bytes(layout.TailV0(slot_count=1))
    (tmp_path / "a.cache").write_bytes(body)

    found = read_region(tmp_path / "a.cache")

    assert found is not None
    assert [device.used_bytes for device in found.devices] == [6]
    assert found.last_kernel_at is None


@pytest.mark.parametrize("content", [b"", b"\0" * 12, b"\0" * layout.SIZE_V1, b"x" * 5000])
def test_a_file_that_is_no_region_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.cache").write_bytes(content)

    assert read_region(tmp_path / "a.cache") is None


def test_a_region_cut_short_is_none(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache")
    os.truncate(file, layout.SIZE_V0 - 1)

    assert read_region(file) is None


def test_links_and_pipes_of_the_tenant_are_not_opened(tmp_path: Path) -> None:
    v1_file(tmp_path / "real")
    (tmp_path / "link.cache").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe.cache")

    assert read_region(tmp_path / "link.cache") is None
    assert read_region(tmp_path / "pipe.cache") is None


def test_the_region_file_is_the_first_cache_that_is_no_library(tmp_path: Path) -> None:
    assert region_file(tmp_path) is None
    assert region_file(tmp_path / "missing") is None
    for name in ("libvgpu.so.cache", "b.cache", "notes.txt"):
        (tmp_path / name).touch()

    assert region_file(tmp_path) == tmp_path / "b.cache"
