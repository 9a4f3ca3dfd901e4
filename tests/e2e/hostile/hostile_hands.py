"""Random damage that a tenant can do to the files of its container's folder on the host.

Every call uses the folder's descriptor and follows no link, and links lead to decoys of the test,
so a program that follows them touches nothing outside a case's own folders.
"""

import contextlib
import os
import random
import socket
import stat
from collections.abc import Callable
from pathlib import Path

DEEPEST = 300
MAX_NAMES = 400
SPARSE_BYTES = 1 << 40
_TAIL_AT = 2_008_896
"""Offset of the number of slots in the second layout (`usage/regions/layout.py`)."""


class Decoys:
    """Targets of the tenants' links, and their state at the beginning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "decoy"
        self.inner = folder / "decoys"
        self.inner.mkdir()
        (self.inner / "kept.cache").write_bytes(b"untouched")
        self.file.write_bytes(b"untouched")
        self.file.chmod(0o640)
        self._before = self._state()

    def _state(self) -> list[tuple[str, int, int, int, int, bytes]]:
        return [
            (
                str(path),
                found.st_mode,
                found.st_uid,
                found.st_size,
                found.st_mtime_ns,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in (self.inner, *sorted(self.inner.iterdir()), self.file)
            for found in (path.lstat(),)
        ]

    def check(self) -> None:
        """Assert that no process followed a link to them."""
        assert self._state() == self._before


class Hands:
    """In one folder."""

    def __init__(self, folder: Path, decoys: Decoys, chance: random.Random) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._decoys = decoys
        self._chance = chance
        with os.scandir(self._folder) as entries:
            names = sorted(each.name for each in entries if each.name.endswith(".cache"))
        self._region = names[0] if names else "made-up.cache"

    def act(self) -> str:
        """Make one attempt; return its name. A file that is gone by then is skipped."""
        way = self._chance.choice(self.ways)
        with contextlib.suppress(OSError):
            way()
        return way.__name__

    def close(self) -> None:
        os.close(self._folder)

    @property
    def ways(self) -> list[Callable[[], None]]:
        return [
            *(self.scribble, self.scribble, self.count, self.zero, self.lengthen, self.cut),
            *(self.link, self.link, self.pipe, self.door, self.device, self.folder, self.vanish),
            *(self.many, self.deep, self.odd_names, self.forbid, self.swap),
        ]

    def _open(self, flags: int = os.O_RDWR) -> int:
        """The region, where it is a file."""
        descriptor = os.open(
            self._region,
            flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
            dir_fd=self._folder,
        )
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError("it is no file any more")

    def _write(self, data: bytes, at: int) -> None:
        descriptor = self._open()
        try:
            os.pwrite(descriptor, data, at)
        finally:
            os.close(descriptor)

    def scribble(self) -> None:
        length = self._chance.choice([1, 8, 64, 4096])
        at = self._chance.choice([0, 4, 24, 64, 1600, 1856, 3040, _TAIL_AT])
        self._write(self._chance.choice([b"\xff" * length, self._chance.randbytes(length)]), at)

    def count(self) -> None:
        """More processes than there are slots, or fewer than none."""
        number = self._chance.choice([-1, 1024, 1025, 2**31 - 1, -(2**31)])
        self._write(number.to_bytes(4, "little", signed=True), _TAIL_AT)

    def zero(self) -> None:
        self._write(bytes(2_008_952), 0)

    def lengthen(self) -> None:
        """Sparse: a terabyte that takes no room."""
        self._truncate(self._chance.choice([1 << 24, SPARSE_BYTES]))

    def cut(self) -> None:
        self._truncate(self._chance.choice([0, 3, 7, 100, 4096, 1_200_000]))

    def _truncate(self, size: int) -> None:
        descriptor = self._open()
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def vanish(self) -> None:
        """The region goes, whatever it is by now."""
        try:
            os.unlink(self._region, dir_fd=self._folder)
        except IsADirectoryError:
            os.rmdir(self._region, dir_fd=self._folder)

    def _instead(self, make: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            self.vanish()
        make()

    def link(self) -> None:
        decoys = self._decoys
        targets = [decoys.file, decoys.inner, decoys.folder / "nothing", Path(self._region)]
        target = self._chance.choice(targets)
        self._instead(lambda: os.symlink(target, self._region, dir_fd=self._folder))

    def pipe(self) -> None:
        self._instead(lambda: os.mkfifo(self._region, dir_fd=self._folder))

    def door(self) -> None:
        """Replace the region's file by a socket without a server."""
        self._instead(self._bind)

    def _bind(self) -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{self._folder}/{self._region}")

    def device(self) -> None:
        """/dev/zero, which never ends."""
        self._instead(
            lambda: os.mknod(
                self._region, 0o666 | stat.S_IFCHR, os.makedev(1, 5), dir_fd=self._folder
            )
        )

    def folder(self) -> None:
        self._instead(lambda: os.mkdir(self._region, dir_fd=self._folder))

    def many(self) -> None:
        """Files that look like regions and come before the real one."""
        for number in range(MAX_NAMES):
            flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(f"!{number}.cache", flags, dir_fd=self._folder))

    def deep(self) -> None:
        """Deeper than a path can be long; a link to a decoy at the end."""
        below = os.dup(self._folder)
        try:
            for _ in range(DEEPEST):
                name = "d" * 40
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=below)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=below)
                os.close(below)
                below = inner
            os.symlink(self._decoys.inner, "end", dir_fd=below)
        finally:
            os.close(below)

    def odd_names(self) -> None:
        for name in (b"\xff\xfe.cache", b"a\nb.cache", b" ", b"x" * 255, b"-rf", b"%s{}.cache"):
            flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, dir_fd=self._folder))

    def forbid(self) -> None:
        descriptor = self._open(os.O_RDONLY)
        try:
            os.fchmod(descriptor, self._chance.choice([0, 0o444, 0o4777]))
        finally:
            os.close(descriptor)

    def swap(self) -> None:
        """Exchange file and link repeatedly, also between a check and an open."""
        with contextlib.suppress(OSError):
            os.symlink(self._decoys.file, "link", dir_fd=self._folder)
        for _ in range(200):
            for name in ("link", self._region):
                os.rename(name, "other", src_dir_fd=self._folder, dst_dir_fd=self._folder)
                other = self._region if name == "link" else "link"
                with contextlib.suppress(FileNotFoundError):
                    os.rename(other, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                os.rename("other", other, src_dir_fd=self._folder, dst_dir_fd=self._folder)
