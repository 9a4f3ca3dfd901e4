"""What `hamictl doctor` found of one part."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartState(StrEnum):
    """Of one part."""

    WELL = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFinding:
    """One line of the answer."""

    part: str
    state: PartState
    detail: str
    next_step: str = ""


def missing(part: str, detail: str, next_step: str = "") -> PartFinding:
    """It is not there, or does not work."""
    return PartFinding(part=part, state=PartState.MISSING, detail=detail, next_step=next_step)


def well(part: str, detail: str) -> PartFinding:
    """It is there and works."""
    return PartFinding(part=part, state=PartState.WELL, detail=detail)


def unknown(part: str, detail: str, next_step: str = "") -> PartFinding:
    """Nobody knows: this user may not look."""
    return PartFinding(part=part, state=PartState.UNKNOWN, detail=detail, next_step=next_step)


def wrong(part: str, detail: str, next_step: str = "") -> PartFinding:
    """The part is there, and something was set in it that has no effect."""
    return PartFinding(part=part, state=PartState.WRONG, detail=detail, next_step=next_step)
