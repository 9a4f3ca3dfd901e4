"""Files that are whole or not there, also after a power cut: temporary file, fsync, rename."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Makes `path` hold `content`; readers see the old file or the new one.

    One that is not `durable` survives a kill of the process, and after a power cut is the old one
    or the new one. Raises: OSError.
    """
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            # Without it the rename may reach the disk before the content.
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames in this directory durable. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
