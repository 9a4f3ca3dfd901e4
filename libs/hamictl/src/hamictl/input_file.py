"""Files of people, each mistake one sentence with the path once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from hamicommon.errors import InvalidRequest

STDIN = "-"
MOST_BYTES = 2**30
"""Of one file: a million pods have a tenth of it."""


def read_text(source: str) -> str:
    """The file's text; `-` is standard input.

    Raises: InvalidRequest naming the file and what is wrong with it.
    """
    try:
        if source == STDIN:
            return _bounded(sys.stdin, "standard input")
        with Path(source).open(encoding="utf-8") as file:
            return _bounded(file, source, os.fstat(file.fileno()).st_size)
    except FileNotFoundError:
        raise InvalidRequest(f"{source}: not readable: no such file") from None
    except IsADirectoryError:
        raise InvalidRequest(
            f"{source}: not readable: it is a folder, and a file is wanted"
        ) from None
    except OSError as exc:
        raise InvalidRequest(f"{source}: not readable: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{source} is no text: byte {exc.start} is not UTF-8") from exc


def _bounded(file: TextIO, source: str, size: int = 0) -> str:
    """`size`: as far as it is known; a device or a pipe has none."""
    text = "" if size > MOST_BYTES else file.read(MOST_BYTES + 1)
    if size > MOST_BYTES or len(text) > MOST_BYTES:
        raise InvalidRequest(f"{source} is too large: at most {MOST_BYTES >> 20} MiB are read")
    # Spreadsheets begin a file with it.
    return text.removeprefix("\ufeff")
