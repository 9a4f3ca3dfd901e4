import os
from pathlib import Path

import pytest
from hami_node_agent.usage.regions import layout as layout
from hami_node_agent.usage.regions.accounting import Region, RegionCard, RegionHeld, RegionProcess
from hami_node_agent.usage.regions.reader import (
    NotARegion,
    RegionReading,
    read_region,
    write_feedback,
)

from tests.unit.node_agent.builders import CARD_A, CARD_B
from tests.unit.node_agent.region_files import MIB, Slot, v0_file, v1_file


def reading(path: Path) -> RegionReading:
    found = read_region(path)
    assert found is not None
    return found


@pytest.mark.parametrize("trailing", [0, 1])
def test_a_region_of_version_1_is_read(tmp_path: Path, trailing: int) -> None:
    """Exited processes are left out."""
    found = reading(v1_file(tmp_path / "a.cache", trailing=trailing))

    assert found.region == Region(
        cards=(RegionCard(index=0, uuid=CARD_A, limit_bytes=4096 * MIB, core_limit_percent=30),),
        processes=(
            RegionProcess(
                pid=7,
                host_pid=0,
                started_ticks=0,
                held=(
                    RegionHeld(
                        total_bytes=6,
                        context_bytes=1,
                        module_bytes=2,
                        buffer_bytes=3,
                        core_percent=11,
                    ),
                ),
            ),
        ),
        last_kernel_epoch_s=1_700_000_000,
        priority=1,
        recent_kernel=2,
        utilization_switch=1,
    )


def test_the_first_kernel_of_the_container_is_read_and_a_change_of_it_is_seen(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.cache"
    before = reading(v1_file(file))
    after = read_region(v1_file(file, first_kernel_epoch_ms=1_800_000_000_123), before)

    assert before.region.first_kernel_epoch_ms == 0
    assert after is not None
    assert after.region.first_kernel_epoch_ms == 1_800_000_000_123


def test_a_file_of_version_0_is_read_too(tmp_path: Path) -> None:
    region = reading(v0_file(tmp_path / "a.cache")).region

    assert [process.held[0].total_bytes for process in region.processes] == [6]
    assert region.last_kernel_epoch_s == 0


def test_cards_beyond_sixteen_are_read_from_the_banks_behind(tmp_path: Path) -> None:
    many = tuple(f"GPU-{number}" for number in range(16))
    file = v1_file(tmp_path / "a.cache", Slot(total_bytes=6), uuids=many)
    more = v1_file(tmp_path / "b", Slot(total_bytes=70), uuids=(CARD_B,)).read_bytes()
    file.write_bytes(file.read_bytes().ljust(layout.BANK_BYTES, b"\0") + more)

    region = reading(file).region

    assert [(card.index, card.uuid) for card in region.cards[15:]] == [(15, many[15]), (16, CARD_B)]
    assert [held.total_bytes for held in region.processes[0].held] == [6, *[0] * 15, 70]


@pytest.mark.parametrize(("slot_count", "processes"), [(-5, 0), (100_000, 1)])
def test_a_count_that_the_tenant_made_up_is_clamped(
    tmp_path: Path, slot_count: int, processes: int
) -> None:
    region = reading(v1_file(tmp_path / "a.cache", slot_count=slot_count)).region

    assert len(region.processes) == processes


def test_start_time_and_host_pid_are_read(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache", Slot(host_pid=4711, started_ticks=99))

    [process] = reading(file).region.processes

    assert (process.host_pid, process.started_ticks) == (4711, 99)


def test_an_unchanged_region_is_the_same_reading(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache")
    first = reading(file)

    assert read_region(file, first) is first

    v1_file(file, Slot(total_bytes=7))
    again = read_region(file, first)
    assert again is not None
    assert [process.held[0].total_bytes for process in again.region.processes] == [7]


def test_a_region_that_is_not_ready_yet_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.cache").write_bytes(b"")
    (tmp_path / "b.cache").write_bytes(b"\0" * layout.SIZE_V1)

    assert read_region(tmp_path / "a.cache") is None
    assert read_region(tmp_path / "b.cache") is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"x" * 5000, "not_a_region"), (layout.MAGIC.to_bytes(4, "little"), "not_a_region")],
)
def test_a_file_that_is_no_region_is_named(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "a.cache").write_bytes(content)

    with pytest.raises(NotARegion) as refused:
        read_region(tmp_path / "a.cache")
    assert refused.value.kind == kind


def test_a_region_cut_short_is_named(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache")
    os.truncate(file, layout.SIZE_V0 - 1)

    with pytest.raises(NotARegion, match="unknown_layout: 1197895 bytes of major version 1"):
        read_region(file)


def test_links_and_pipes_of_the_tenant_are_not_opened(tmp_path: Path) -> None:
    v1_file(tmp_path / "real")
    (tmp_path / "link.cache").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe.cache")

    with pytest.raises(OSError, match="symbolic links"):
        read_region(tmp_path / "link.cache")
    with pytest.raises(NotARegion, match="odd_file"):
        read_region(tmp_path / "pipe.cache")


def test_a_slot_that_is_being_written_is_read_all_the_same(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache", Slot(sequence=3, total_bytes=5), Slot(pid=9, sequence=4))

    assert [process.pid for process in reading(file).region.processes] == [7, 9]


def test_feedback_changes_two_switches_and_nothing_else(tmp_path: Path) -> None:
    file = v1_file(tmp_path / "a.cache", uuids=(CARD_A, CARD_B))
    before = file.read_bytes()

    write_feedback(file, recent_kernel=-1, utilization_switch=None)
    assert reading(file).region.recent_kernel == -1

    write_feedback(file, recent_kernel=None, utilization_switch=0)
    after = reading(file).region
    assert (after.recent_kernel, after.utilization_switch) == (-1, 0)

    write_feedback(file, recent_kernel=2, utilization_switch=1)
    assert file.read_bytes() == before
