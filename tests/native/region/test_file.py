"""Whatever is at the region's path, whatever the disk answers: programs run and limits hold."""

import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.machine import MIB, Container, Machine, open_context

OUT_OF_MEMORY = 2
FOREIGN = b"somebody's letter\n" * 1000
PRIVATE = "the limits hold for this process alone"


def holds(container: Container, **env: str) -> None:
    """The program runs, and keeps to its slice."""
    client = open_context(container.start(LIBCUDA_LOG_LEVEL="0", **env))
    assert client.info() == (10 * MIB, 10 * MIB)
    assert client.alloc(11 * MIB)[0] == OUT_OF_MEMORY
    assert client.alloc(10 * MIB)[0] == 0
    assert client.close() == 0


def mount_folder(folder: Path, *options: str) -> None:
    done = subprocess.run(["mount", *options, folder], capture_output=True, text=True, timeout=30)
    if done.returncode != 0:
        pytest.skip(f"this machine refuses to mount: {done.stderr.strip()}")


@pytest.fixture(params=["tmpfs", "ext4"])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty directory on a file system without a free block."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if request.param == "tmpfs":
        mount_folder(folder, "-t", "tmpfs", "-o", "size=64k", "tmpfs")
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(2 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, timeout=60)
        mount_folder(folder, "-o", "loop", str(image))
    try:
        (folder / "regions").mkdir()
        with (folder / "filler").open("wb", buffering=0) as filler:
            for size in (4096, 1):
                try:
                    while filler.write(bytes(size)):
                        pass
                except OSError as full:
                    assert full.errno == 28, full  # noqa: PT017 - any other error is a mistake here
        yield folder / "regions"
    finally:
        subprocess.run(["umount", folder], check=True, timeout=30)


def test_on_a_full_disk_each_process_keeps_to_the_limit(
    machine: Machine, full_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    container = Container(machine, machine.folder, full_disk / "region.cache")
    container.limit(10 * MIB)
    holds(container)
    errors = capfd.readouterr().err
    assert errors.count("shared region") == 1, errors
    assert "No space left on device" in errors
    assert PRIVATE in errors


# Python ignores the signal that ends a program there; most programs do not.
ON_THE_CARD = """
#include <dlfcn.h>
int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned int) = (int (*)(unsigned int))dlsym(driver, "cuInit");
    return init(0);
}
"""


def test_a_limit_on_file_sizes_ends_nobody(
    machine: Machine, container: Container, compile_c: Callable[..., Path]
) -> None:
    container.limit(10 * MIB)
    machine.ctl("show")  # makes the card's own file, which is larger
    done = subprocess.run(
        ["prlimit", "--fsize=1000000", compile_c(ON_THE_CARD, "-ldl")],
        env=container.env(LIBCUDA_LOG_LEVEL="0"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    assert "File too large" in done.stderr


def test_what_the_region_needs_is_on_the_disk_before_anybody_uses_it(container: Container) -> None:
    container.limit(10 * MIB)
    open_context(container.start())
    # The file is 8 MB long; only the used part has blocks.
    assert 16 * 1024 <= container.region.stat().st_blocks * 512 <= 256 * 1024


def symbolic_link(path: Path, letter: Path) -> None:
    path.symlink_to(letter)


def dangling_link(path: Path, letter: Path) -> None:
    path.symlink_to(letter.with_name("nowhere"))


def hard_link(path: Path, letter: Path) -> None:
    path.hardlink_to(letter)


def hard_link_to_an_empty_file(path: Path, letter: Path) -> None:
    empty = letter.with_name("empty")
    empty.touch()
    path.hardlink_to(empty)


def foreign_file(path: Path, letter: Path) -> None:
    path.write_bytes(letter.read_bytes())


def foreign_file_that_begins_with_zeroes(path: Path, letter: Path) -> None:
    path.write_bytes(bytes(4096) + letter.read_bytes())


def pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def directory(path: Path, _: Path) -> None:
    path.mkdir()


def device(path: Path, _: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero


def local_socket(path: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    "lay",
    [
        symbolic_link,
        dangling_link,
        hard_link,
        hard_link_to_an_empty_file,
        foreign_file,
        foreign_file_that_begins_with_zeroes,
        pipe,
        directory,
        device,
        local_socket,
    ],
)
def test_what_is_no_region_of_ours_is_left_alone(
    container: Container,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    lay: Callable[[Path, Path], None],
) -> None:
    letter = tmp_path / "letter"
    letter.write_bytes(FOREIGN)
    lay(container.region, letter)
    before = state_of(container.region), state_of(letter)
    container.limit(10 * MIB)
    holds(container)
    assert (state_of(container.region), state_of(letter)) == before
    assert not (tmp_path / "nowhere").exists()
    errors = capfd.readouterr().err
    assert errors.count("shared region") == 1, errors
    assert PRIVATE in errors


def state_of(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    content = (
        path.read_bytes() if stat.S_ISREG(path.stat().st_mode if path.exists() else 0) else b""
    )
    return stat.S_IFMT(status.st_mode), status.st_size, status.st_nlink, content


@pytest.mark.parametrize("size", [8044544, 2008953])
def test_a_region_whose_maker_was_killed_early_is_used(container: Container, size: int) -> None:
    with container.region.open("wb") as file:
        file.truncate(size)
    container.limit(10 * MIB)
    one, two = open_context(container.start()), open_context(container.start())
    assert one.alloc(6 * MIB)[0] == 0
    assert two.info() == (4 * MIB, 10 * MIB)
