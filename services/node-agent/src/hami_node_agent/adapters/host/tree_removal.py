"""Removes one tree that somebody else filled, whatever is in it.

In: a directory by descriptor, and the name of what goes. Nothing is recursive and no path is built:
each directory found below is moved up into the tree's own top and emptied there, so neither depth
nor the length of a path matters and three descriptors are enough. No link is followed, and nothing
mounted inside is entered: the kernel refuses to move or remove a mount point (EBUSY), and only what
it called "not empty" is opened. A process that still writes there costs time, which is bounded.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from secrets import token_hex

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})
# It went, or became something else, while we looked: the next pass sees what it is now.
_CHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


class OutOfTime(Exception):
    """The deadline came first; what was removed by then is gone."""


def remove_tree(parent: int, name: str, *, deadline_s: float) -> None:
    """Removes `name` in the directory of the descriptor `parent` (blocking).

    `deadline_s`: of `time.monotonic`. Raises: OutOfTime, OSError of what can't be removed when
    nothing else is left to remove.
    """
    tree = _Tree(deadline_s)
    while not tree.is_gone(parent, name):
        with _opened(parent, name) as top:
            if top is not None:
                tree.empty(top)


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
        """Passes until one finds nothing to do. Raises: OutOfTime, OSError."""
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
        """Removes what is no directory, or is an empty one; True when it is not there any more.

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
        with _opened(top, name) as inner:
            # A mount that came in this instant is the host's, and stays.
            if inner is None or os.fstat(inner).st_dev != self._device:
                return
            for child in self._entries(inner):
                if not self._attempt(inner, child):
                    self._move_up(inner, child, top)
        self._attempt(top, name)

    def _attempt(self, directory: int, name: str) -> bool:
        """False where something is in it, or it became something else; errors are kept."""
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
def _opened(parent: int, name: str) -> Iterator[int | None]:
    """A directory that is no link; None when it went or became something else. Raises: OSError."""
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
