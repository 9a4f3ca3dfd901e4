"""Write files atomically, by a temporary file and rename."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace the content of `path`; readers see the old or the new file.

    A `durable` file is the old or the new one after a power failure too. Any other may then be
    empty, so it must be rewritten before it is read. The kubelet writes its checkpoint in the same
    way: its later writes never reach the disk before our earlier ones.

    Raises: OSError; then `path` is unchanged and no temporary file is left.
    """
    temporary = f"{path.parent}/.{path.name}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor, not a path
            os.fchmod(descriptor, mode)
            left = memoryview(content)
            while left:
                # One write stores what the disk has room for; the next one reports that it is full.
                left = left[file.write(left) :]
            if durable:
                # Without it the rename may reach the disk before the content.
                os.fsync(descriptor)
        os.replace(temporary, path)  # noqa: PTH105 - pathlib parses both names again
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - as above
        raise


def age_s(path: Path) -> float:
    """Return the seconds since a file, or a folder's list of names, changed; 0 if it is gone.

    By the time of status changes: a tenant may set any time of modification.
    """
    try:
        return time.time() - path.lstat().st_ctime
    except OSError:
        return 0.0


def make_empty(path: Path, *, mode: int) -> None:
    """Create an empty file unless one of that name exists. Raises: OSError."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode)
    except FileExistsError:
        return
    try:
        # Whatever our umask is.
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)
