"""Programs that close all descriptors, as daemons do, and get the numbers for other files."""

from pathlib import Path

import pytest

from tests.native.machine import MIB, Container, is_locked

OUT_OF_MEMORY = 2


@pytest.mark.parametrize("reused", [False, True], ids=["number free", "number reused"])
def test_the_lock_of_the_region_survives_a_program_that_closes_everything(
    container: Container, tmp_path: Path, reused: bool
) -> None:
    container.limit(10 * MIB)
    client, other = container.start(), container.start()
    for one in (client, other):
        assert one.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    assert other.alloc(9 * MIB)[0] == 0
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x")
    files = client.call("close_descriptors", path=str(theirs) if reused else None)["files"]
    assert bool(files) == reused
    # Refused: the library looks for the dead, with the lock of the region, and finds none.
    assert client.alloc(2 * MIB)[0] == OUT_OF_MEMORY
    assert is_locked(theirs) == reused  # unlocking ours would have dropped the program's own lock
    other.kill()
    assert client.alloc(9 * MIB)[0] == 0
    assert client.info() == (0, 10 * MIB)
    assert is_locked(theirs) == reused


def test_the_files_of_a_forked_child_are_not_closed(container: Container, tmp_path: Path) -> None:
    container.limit(10 * MIB)
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"x")
    files = client.call("close_descriptors", path=str(theirs))["files"]
    # The child lets go of what it inherited: of the region, not of the program's files.
    child = client.call("fork_and_alloc", bytes=MIB)
    assert (child["result"], child["files_open"]) == (0, len(files))
    assert client.alloc(9 * MIB)[0] == 0
    assert is_locked(theirs)


def test_a_region_that_was_replaced_is_not_locked_for_another(
    container: Container, tmp_path: Path
) -> None:
    container.limit(10 * MIB)
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.alloc(MIB)[0] == 0
    client.call("close_descriptors", path=None)
    container.region.unlink()
    container.region.write_bytes(b"")
    assert client.alloc(10 * MIB)[0] == OUT_OF_MEMORY
    assert client.alloc(9 * MIB)[0] == 0
    assert container.region.stat().st_size == 0
