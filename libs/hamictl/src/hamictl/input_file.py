"""Files of people, each mistake one sentence with the path once."""

from __future__ import annotations

import sys
from pathlib import Path

from hamicommon.errors import InvalidRequest

STDIN = "-"


def read_text(source: str) -> str:
    """The file's text; `-` is standard input.

    Raises: InvalidRequest naming the file and what is wrong with it.
    """
    if source == STDIN:
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
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
