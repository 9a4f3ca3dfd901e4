"""Remove folders in two steps: rename them immediately, then delete files bit by bit.

A directory that a tenant filled may take minutes to remove. `detach` immediately moves it into
`<parent>/.removing`, so its name is free and a tenant's mistake delays no other one. `work` removes
the content in short turns, the least recently tried folder first. The next agent removes what a
killed one left there. All calls block.

`remove_tree` is not `shutil.rmtree`, which in CPython 3.11 recurses (a tenant nests 5000 folders),
holds a descriptor for each level and enters mounts. Here nothing is recursive and no path is built:
each directory found below is moved up into the tree's own top and emptied there, so neither depth
nor the length of a path matters and three descriptors are enough. No link is followed, and no mount
inside is entered: the kernel refuses to move or remove a mount point (EBUSY), and only a directory
that it called "not empty" is opened. A process that still writes there costs time, which is
bounded.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from secrets import token_hex

from hamicommon.clipping import clip

logger = logging.getLogger(__name__)

REMOVING = ".removing"
TURN_S = 1.0
"""Maximum time per folder and round, so that one that grows delays no other."""
RETRY_FIRST_S = 30.0
RETRY_LAST_S = 3600.0
_NAME_BYTES = 200
"""Maximum bytes of the old name within the new one."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class _Trouble:
    failures: int
    retry_at_s: float


class Removal:
    """Removal of folders below one parent; only one thread at a time may call `work`."""

    def __init__(self, parent: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._parent = parent
        self._clock = clock
        self._known = threading.Lock()
        """Guard of the next three, which rounds and callers change."""
        self._in_place: set[str] = set()
        """Names that could not be detached because the disk is full."""
        self._troubles: dict[str, _Trouble] = {}
        self._worked_at: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self.waiting = 0
        """Directories that the last round left."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of failed removals since the start, by the system's error."""
        return dict(self._failures)

    def detach(self, name: str) -> None:
        """Rename the folder of this name to `REMOVING`, if it exists. Raises: OSError."""
        if name in ("", os.curdir, os.pardir, REMOVING) or "/" in name:
            raise OSError(errno.EINVAL, "not the name of a HAMi directory", clip(name))
        if not os.path.lexists(self._parent / name):
            return
        kept = os.fsdecode(os.fsencode(name)[:_NAME_BYTES])
        try:
            (self._parent / REMOVING).mkdir(mode=0o700, exist_ok=True)
            (self._parent / name).rename(self._parent / REMOVING / f"{kept}.{token_hex(8)}")
        except FileNotFoundError:
            return

    def give_up(self, name: str) -> None:
        """Rename the folder, so that `work` removes it; failures are logged and counted."""
        with self._known:
            trouble = self._troubles.get(name)
        if trouble is not None and self._clock() < trouble.retry_at_s:
            return
        try:
            self.detach(name)
        except OSError as exc:
            # On a full disk it is the removal that makes room.
            if exc.errno not in _DISK_FULL:
                self._on_failure(name, exc)
                return
            with self._known:
                self._in_place.add(name)

    def work(self, budget_s: float) -> bool:
        """Delete files for about `budget_s` seconds; return True if more are left."""
        ends_s = self._clock() + budget_s
        due = self._due()
        left = len(due)
        for place, name in due:
            if self._clock() >= ends_s:
                return True
            with self._known:
                self._worked_at[name] = self._clock()
            if self._is_removed(place, name):
                left -= 1
        return left > 0

    def _due(self) -> list[tuple[Path, str]]:
        """Return the folders, the least recently tried first."""
        removing = self._parent / REMOVING
        try:
            names = [path.name for path in removing.iterdir()]
        except FileNotFoundError:
            names = []
        except OSError as exc:
            self._on_failure(REMOVING, exc)
            names = []
        now = self._clock()
        with self._known:
            found = [*((removing, n) for n in names), *((self._parent, n) for n in self._in_place)]
            self.waiting = len(found)
            here = {name for _, name in found}
            self._worked_at = {n: at for n, at in self._worked_at.items() if n in here}
            self._troubles = {
                name: trouble
                for name, trouble in self._troubles.items()
                # One that could not be detached is given up again before long, or is gone.
                if name in here or now < trouble.retry_at_s + RETRY_LAST_S
            }
            due = [
                (self._worked_at.get(name, float("-inf")), place, name)
                for place, name in found
                if name not in self._troubles or now >= self._troubles[name].retry_at_s
            ]
        return [(place, name) for _, place, name in sorted(due)]

    def _is_removed(self, place: Path, name: str) -> bool:
        """Remove one folder.

        Return True also after a failure, which is retried in another round.
        """
        try:
            remove_tree(place / name, deadline_s=time.monotonic() + TURN_S)
        except OutOfTime:
            logger.info("Still removing a directory", extra={"directory": clip(name)})
            return False
        except OSError as exc:
            self._on_failure(name, exc)
            return True
        with self._known:
            self._in_place.discard(name)
            self._troubles.pop(name, None)
            self.waiting -= 1
        return True

    def _on_failure(self, name: str, exc: OSError) -> None:
        """Log a failure and double the pause before the next attempt."""
        with self._known:
            failures = self._troubles[name].failures + 1 if name in self._troubles else 1
            pause_s = min(RETRY_FIRST_S * 2.0 ** min(failures - 1, 16), RETRY_LAST_S)
            self._troubles[name] = _Trouble(failures, self._clock() + pause_s)
            self._failures[errno.errorcode.get(exc.errno or 0, "other")] += 1
        logger.warning(
            "Failed to remove a directory",
            extra={
                "directory": clip(name),
                "parent": str(self._parent),
                "error": clip(str(exc)),
                "failures": failures,
                "retry_s": pause_s,
            },
        )


_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
# It was removed or replaced in the meantime: the next pass sees its new state.
_CHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class OutOfTime(Exception):
    """Error: the time ended before the whole tree was removed."""


def remove_tree(path: Path, *, deadline_s: float) -> None:
    """Remove the file or folder at this path (blocking).

    `deadline_s`: of `time.monotonic`. Raises: OutOfTime, OSError of what can't be removed when
    nothing else is left to remove.
    """
    tree = _Tree(deadline_s)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not tree.is_gone(parent, path.name):
            with _open_folder(parent, path.name) as top:
                if top is not None:
                    tree.empty(top)
    finally:
        os.close(parent)


class _Tree:
    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._device = -1
        # Not to be guessed by a tenant who would keep the names taken.
        self._names = (f".{token_hex(8)}-{number}" for number in count())
        self._steps = 0
        """Entries that were removed or moved up."""
        self._error: OSError | None = None
        """The first of a pass."""

    def empty(self, top: int) -> None:
        """Delete all content, repeating until nothing is left. Raises: OutOfTime, OSError."""
        self._device = os.fstat(top).st_dev
        while True:
            before, self._error = self._steps, None
            found = False
            for entry in self._entries(top):
                found = True
                self._remove_from_top(top, entry)
            if not found:
                return
            if self._steps == before and self._error is not None:
                raise self._error

    def is_gone(self, parent: int, name: str) -> bool:
        """Delete a file or an empty folder; return True if nothing has that name any more.

        Raises: OutOfTime, OSError.
        """
        self._check_time()
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return True
        except OSError as exc:
            if exc.errno in _NOT_EMPTY | _CHANGED:
                return False
            raise
        self._steps += 1
        return True

    def _remove_from_top(self, top: int, name: str) -> None:
        if self._attempt(top, name):
            return
        with _open_folder(top, name) as inner:
            # A mount that came in this instant is the host's, and stays.
            if inner is None or os.fstat(inner).st_dev != self._device:
                return
            for child in self._entries(inner):
                if not self._attempt(inner, child):
                    self._move_up(inner, child, top)
        self._attempt(top, name)

    def _attempt(self, directory: int, name: str) -> bool:
        """Call `is_gone`, and keep its error for the end; return True after an error."""
        try:
            return self.is_gone(directory, name)
        except OSError as exc:
            self._error = self._error or exc
            return True

    def _move_up(self, directory: int, name: str, top: int) -> None:
        try:
            os.rename(name, next(self._names), src_dir_fd=directory, dst_dir_fd=top)
        except OSError as exc:
            if exc.errno not in _CHANGED:
                self._error = self._error or exc
        else:
            self._steps += 1

    def _entries(self, directory: int) -> Iterator[str]:
        with os.scandir(directory) as entries:
            for entry in entries:
                self._check_time()
                yield entry.name

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline_s:
            raise OutOfTime


@contextmanager
def _open_folder(parent: int, name: str) -> Iterator[int | None]:
    """Open a folder that is no link; None if it is gone or something else. Raises: OSError."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=parent)
    except OSError as exc:
        if exc.errno in _CHANGED:
            yield None
            return
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)
