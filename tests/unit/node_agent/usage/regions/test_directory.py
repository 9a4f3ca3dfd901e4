"""All regions of a node: whatever tenants put into their directories, the rest is read."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hami_node_agent.usage.regions import layout as layout
from hami_node_agent.usage.regions.accounting import Region, card_uses
from hami_node_agent.usage.regions.reader import Regions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.node_agent.region_files import Slot, v0_file, v1_file

# Where a file's meaning is: counts, sizes, names, limits, counters.
_MEANINGFUL = st.one_of(
    st.integers(0, layout.V1.slots_at + 2 * layout.V1.slot_size),
    st.integers(layout.V1.tail_at, layout.SIZE_V1),
    st.integers(layout.V0.tail_at, layout.SIZE_V0),
    st.integers(0, layout.SIZE_V1),
)
_WRITES = st.lists(st.tuples(_MEANINGFUL, st.binary(min_size=1, max_size=64)), max_size=6)
_SIZES = st.one_of(
    st.none(),
    st.integers(0, 4096),
    st.integers(layout.SIZE_V0 - 100, layout.SIZE_V0 + 100),
    st.integers(layout.SIZE_V1 - 100, layout.SIZE_V1 + 100),
    st.integers(0, layout.SIZE_V1),
)


def directory(base: Path, name: str) -> Path:
    (base / name).mkdir()
    return base / name


def read(regions: Regions) -> dict[str, Region]:
    return regions.read(now_ns=time.time_ns())


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="regions-"))
    v1_file(directory(made, "good_main") / "a.cache")
    directory(made, "bad_main")
    yield made
    shutil.rmtree(made)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=st.booleans(), writes=_WRITES, size=_SIZES)
def test_no_region_file_harms_another_or_has_impossible_values(
    base: Path,
    old: bool,
    writes: list[tuple[int, bytes]],
    size: int | None,
) -> None:
    file = base / "bad_main" / "b.cache"
    (v0_file if old else v1_file)(file)
    with file.open("r+b") as opened:
        for at, data in writes:
            opened.seek(at)
            opened.write(data)
        if size is not None:
            opened.truncate(size)
    regions = Regions(base)

    found = read(regions)

    assert found["good_main"].processes[0].pid == 7
    assert len(found) + len(regions.problems) + _not_ready(file) == 2
    if "bad_main" in found:
        for use in card_uses(
            found["bad_main"],
            living=range(len(found["bad_main"].processes)),
            measured_percent=lambda _number, _uuid: None,
        ):
            assert use.card.uuid.isprintable()
            assert use.total_bytes is None or 0 <= use.total_bytes <= 1024 * 2**48
            assert use.core_percent is None or 0 <= use.core_percent <= 100
        before = file.stat().st_size
        regions.write("bad_main", recent_kernel=-1, utilization_switch=1)
        assert file.stat().st_size == before


def _not_ready(file: Path) -> int:
    with file.open("rb") as opened:
        return int(not any(opened.read(4)))


def test_a_problem_is_counted_each_time_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = directory(tmp_path, "a_main") / "a.cache"
    file.write_bytes(b"rubbish!")
    regions = Regions(tmp_path)

    with caplog.at_level(logging.WARNING):
        assert [read(regions), read(regions)] == [{}, {}]

    assert [record.message for record in caplog.records] == ["Ignoring an unusable region"]
    assert (regions.failures, len(regions.problems)) == ({"not_a_region": 2}, 1)

    v1_file(file)
    assert set(read(regions)) == {"a_main"}
    assert len(regions.problems) == 0


def test_the_region_is_the_first_cache_that_is_no_library(tmp_path: Path) -> None:
    container = directory(tmp_path, "a_main")
    v1_file(container / "b.cache", Slot(pid=5))
    for name in ("libvgpu.so.cache", "c.cache", "notes.txt"):
        (container / name).touch()

    assert read(Regions(tmp_path))["a_main"].processes[0].pid == 5


def test_a_file_that_took_anothers_place_is_read(tmp_path: Path) -> None:
    container = directory(tmp_path, "a_main")
    v1_file(container / "a.cache", Slot(pid=5))
    os.utime(container, ns=(0, 0))
    regions = Regions(tmp_path)
    assert read(regions)["a_main"].processes[0].pid == 5

    v1_file(tmp_path / "new", Slot(pid=6)).rename(container / "a.cache")
    assert read(regions)["a_main"].processes[0].pid == 6

    (container / "a.cache").unlink()
    assert read(regions) == {}
    v1_file(container / "other.cache", Slot(pid=8))
    assert read(regions)["a_main"].processes[0].pid == 8


def test_directories_that_come_and_go_are_followed(tmp_path: Path) -> None:
    regions = Regions(tmp_path / "containers")
    assert read(regions) == {}
    (tmp_path / "containers").mkdir()
    (tmp_path / "containers" / "a file").touch()
    v1_file(directory(tmp_path / "containers", "a_main") / "a.cache")
    (tmp_path / "containers" / "b_link").symlink_to(tmp_path / "containers" / "a_main")
    assert set(read(regions)) == {"a_main"}

    shutil.rmtree(tmp_path / "containers" / "a_main")
    assert read(regions) == {}
    assert regions.failures == {}


def test_a_thousand_stale_directories_cost_no_listing_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1000):
        os.utime(directory(tmp_path, f"{number}_main"), ns=(0, 0))
    v1_file(directory(tmp_path, "a_main") / "a.cache")
    regions = Regions(tmp_path)
    read(regions)
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), scandir(path))[1])

    assert set(read(regions)) == {"a_main"}
    # The directory of all, and the one that is younger than a second.
    assert len(listed) <= 2


def test_a_disk_that_is_full_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A region is sparse, so even the monitor's switches may need room. /dev/full has none."""
    v1_file(directory(tmp_path, "a_main") / "a.cache")
    regions = Regions(tmp_path)
    read(regions)
    full = os.open("/dev/full", os.O_WRONLY)
    pwrite = os.pwrite
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "pwrite", lambda _, data, at: pwrite(full, data, at))
        regions.write("a_main", recent_kernel=1, utilization_switch=0)
        regions.write("a_main", recent_kernel=1, utilization_switch=0)
    os.close(full)

    assert regions.failures == {"write_disk_full": 2}
    assert len(caplog.records) == 1
    assert set(read(regions)) == {"a_main"}


def test_what_is_written_behind_a_region_is_taken_back_at_each_look(tmp_path: Path) -> None:
    """The region is the one file of the host that its container can write."""
    region = v1_file(directory(tmp_path, "long_main") / "a.cache")
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 100)
    regions = Regions(tmp_path)
    known = read(regions)["long_main"]

    for _ in range(2):
        with region.open("r+b") as file:
            file.truncate(layout.MAX_BYTES + 2**30)
        assert "long_main" not in read(regions)
        assert region.stat().st_size == layout.MAX_BYTES
        assert read(regions)["long_main"] == known
    assert regions.failures == {"oversized": 2}

    region.unlink()
    region.symlink_to(precious)
    assert "long_main" not in read(regions)
    assert precious.stat().st_size == 100
