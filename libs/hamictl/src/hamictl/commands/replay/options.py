"""The options of `hamictl replay` as values, each mistake one sentence."""

from __future__ import annotations

import re

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MOST_SEEDS = 1000


def seeds_of(text: str) -> list[int]:
    """`42-51`, `7`, or a comma list of such.

    Raises: InvalidRequest with the text and what would be right.
    """
    found: dict[int, None] = {}
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece.strip())
        first = int(match[1]) if match else 1
        last = int(match[2] or first) if match else 0
        if not 0 <= last - first < _MOST_SEEDS:
            raise InvalidRequest(
                f"--seeds is {clip(text)!r}: numbers or ranges are wanted, such as 42-51 or 7,9"
            )
        found.update(dict.fromkeys(range(first, last + 1)))
    return list(found)


def percent_of(text: str, option: str, *, least: int, most: int) -> float:
    """`130` or `130%`, as a part of 1.

    Raises: InvalidRequest with the option, the text and what would be right.
    """
    number = text.strip().removesuffix("%")
    if not number.isascii() or not number.isdigit() or not least <= int(number) <= most:
        raise InvalidRequest(
            f"{option} is {clip(text)!r}: a percentage from {least} to {most} is wanted"
        )
    return int(number) / 100


def percents_of(text: str, option: str, *, least: int, most: int) -> list[float]:
    """A comma list of percentages, each once, as parts of 1.

    Raises: InvalidRequest with the option, the text and what would be right.
    """
    pieces = [piece for piece in text.split(",") if piece.strip()] or [text]
    return list(dict.fromkeys(percent_of(p, option, least=least, most=most) for p in pieces))


def seconds_of(text: str, option: str) -> float:
    """`90s`, `30m`, `6h` or `30d`.

    Raises: InvalidRequest with the option, the text and what would be right.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise InvalidRequest(
            f"{option} is {clip(text)!r}: a number above 0 with s, m, h or d is wanted, such as 6h"
        )
    return float(int(match[1]) * _SECONDS[match[2]])
