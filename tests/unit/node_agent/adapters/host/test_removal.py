"""Whatever a tenant left in its directory goes, within its turn, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hami_node_agent.adapters.host.removal import (
    REMOVING,
    RETRY_FIRST_S,
    OutOfTime,
    Removal,
    remove_tree,
)

from tests.unit.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def removal(tmp_path: Path, clock: Clock) -> Removal:
    (tmp_path / "containers").mkdir()
    return Removal(tmp_path / "containers", clock=clock)


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    directory = tmp_path / "containers" / "uid_main"
    directory.mkdir(parents=True)
    return directory


def make_nested(directory: Path, depth: int) -> None:
    """Directories below each other, as a tenant makes them: no path is as long as that."""
    at = os.open(directory, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=at)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)


def is_removed(removal: Removal, rounds: int = 60) -> bool:
    return any(not removal.work(5.0) and removal.waiting == 0 for _ in range(rounds))


def test_five_thousand_nested_directories_go(removal: Removal, pod: Path) -> None:
    make_nested(pod, 5000)

    removal.give_up(pod.name)

    assert not pod.exists()
    assert is_removed(removal)
    assert not list((pod.parent / REMOVING).iterdir())
    assert not removal.failures


@pytest.mark.parametrize("files", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_files_in_many_directories_go(removal: Removal, pod: Path, files: int) -> None:
    at = os.open(pod, os.O_RDONLY)
    for number in range(100):
        os.mkdir(f"d{number}", dir_fd=at)
    for number in range(files):
        os.mknod(f"d{number % 100}/{number}", dir_fd=at)
    os.close(at)

    removal.give_up(pod.name)

    assert is_removed(removal)


def test_odd_names_pipes_and_closed_directories_go(removal: Removal, pod: Path) -> None:
    base = os.fsencode(pod)
    os.mkdir(base + b"/\xff\xfe")  # noqa: PTH102 - names that are no text
    os.mkdir(base + b"/\xff\xfe/\x01\n")  # noqa: PTH102 - names that are no text
    os.mkfifo(base + b"/\xff\xfe/pipe")
    os.mkdir(base + b"/" + b"n" * 255)  # noqa: PTH102 - names that are no text
    closed = pod / "closed"
    (closed / "in").mkdir(parents=True)
    (closed / "in" / "file").touch()
    (closed / "in").chmod(0)
    closed.chmod(0)
    pod.chmod(0)

    removal.give_up(pod.name)

    assert is_removed(removal)


def test_links_are_removed_and_not_followed(removal: Removal, pod: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (precious / "inner").mkdir(parents=True)
    (precious / "file").touch()
    (pod / "a" / "b").mkdir(parents=True)
    for place in (pod / "link", pod / "a" / "link", pod / "a" / "b" / "up"):
        place.symlink_to(precious, target_is_directory=True)
    link = pod.parent / "stray"
    link.symlink_to(precious, target_is_directory=True)

    removal.give_up(pod.name)
    removal.give_up("stray")

    assert is_removed(removal)
    assert not link.is_symlink()
    assert sorted(path.name for path in precious.iterdir()) == ["file", "inner"]


@pytest.fixture
def mounted(pod: Path, tmp_path: Path) -> Iterator[Path]:
    """Something of the host, bound deep inside the pod's directory."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    at = pod / "a" / "b" / "mount"
    at.mkdir(parents=True)
    subprocess.run(["mount", "--bind", outside, at], check=True)
    yield outside
    subprocess.run(["sh", "-c", f"umount $(findmnt -rno TARGET | grep {tmp_path})"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_mount_inside_stays_whole_and_everything_else_goes(
    removal: Removal, pod: Path, mounted: Path
) -> None:
    make_nested(pod / "a", 50)
    removal.give_up(pod.name)

    removal.work(5.0)

    assert (mounted / "file").exists()
    assert removal.failures == {"EBUSY": 1}
    [left] = (pod.parent / REMOVING).iterdir()
    assert sum(1 for _ in left.rglob("*")) == 3  # b, the mount point, and the file seen through it


@pytest.fixture
def immutable(pod: Path) -> Iterator[Path]:
    file = pod / "a" / "immutable"
    file.parent.mkdir()
    file.touch()
    subprocess.run(["chattr", "+i", file], check=True)
    yield file
    subprocess.run(["chattr", "-R", "-i", pod.parent], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="the attribute needs root")
def test_what_cannot_be_removed_is_tried_again_ever_later_and_holds_up_nobody(
    removal: Removal, pod: Path, immutable: Path, clock: Clock
) -> None:
    removal.give_up(pod.name)
    (pod.parent / "other").mkdir()
    removal.give_up("other")

    for _ in range(3):
        removal.work(5.0)
    assert removal.failures == {"EPERM": 1}
    assert removal.waiting == 1
    clock.now = RETRY_FIRST_S
    for _ in range(3):
        removal.work(5.0)
    assert removal.failures == {"EPERM": 2}
    clock.now = 2 * RETRY_FIRST_S
    removal.work(5.0)
    assert removal.failures == {"EPERM": 2}
    subprocess.run(["chattr", "-R", "-i", pod.parent], check=True)
    clock.now = 4 * RETRY_FIRST_S
    removal.work(5.0)
    assert removal.waiting == 0


def test_who_keeps_writing_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    directory = tmp_path / "busy"
    directory.mkdir()
    at = os.open(directory, os.O_RDONLY)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.mkdir(f"{number}", dir_fd=at)
                os.mkdir(f"{number}/inner", dir_fd=at)
            except FileNotFoundError:
                continue

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # It ends, in time or (where it was quicker than the writer) because all of it is gone.
        try:
            remove_tree(tmp_path / "busy", deadline_s=0.0)
        except OutOfTime:
            pass
        else:
            pytest.fail("it took no notice of its deadline")
    finally:
        stop.set()
        writer.join()
        os.close(at)


def test_what_a_killed_agent_left_half_removed_is_removed_by_the_next(
    removal: Removal, pod: Path, clock: Clock
) -> None:
    (pod / "a" / "b").mkdir(parents=True)
    removal.give_up(pod.name)

    assert is_removed(Removal(pod.parent, clock=clock))
    assert not list((pod.parent / REMOVING).iterdir())


@pytest.mark.parametrize("name", ["", ".", "..", REMOVING, "../precious", "a/b"])
def test_a_name_that_is_none_of_ours_is_refused(removal: Removal, name: str) -> None:
    with pytest.raises(OSError, match="not the name of a HAMi directory"):
        removal.detach(name)
