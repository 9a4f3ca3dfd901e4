"""What may be put into a question: typed values, from text as people write it.

Times are RFC 3339, `now`, `-15m` or `15m` (before now), `14:05` and `yesterday 14:05` (UTC);
durations `90s`, `15m`, `2h30m`, `7d`; amounts of memory `8Gi` or bytes; shares `0.3` or `30%`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from hamicommon.errors import InvalidRequest

Value: TypeAlias = str | int | float | datetime | timedelta | None
"""None: it was not given, and has no default."""

MOST_TEXT = 253
"""Characters of a text: the longest name that Kubernetes knows (RFC 1123, DNS subdomain)."""
_MOST_BYTES = 1 << 60
_MOST_COUNT = 1_000_000
_MOST_SPAN = timedelta(days=3660)
_LONGEST_SPAN = 60
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(?:\d{1,9}[smhdw])+")
_PART = re.compile(r"(\d{1,9})([smhdw])")
_CLOCK = re.compile(r"((?P<day>yesterday|today)\s+)?(?P<h>\d{1,2}):(?P<m>\d{2})(:(?P<s>\d{2}))?")
_MEMORY = re.compile(r"(?P<amount>\d{1,18})(?P<unit>|Ki|Mi|Gi|Ti)")
_MEMORY_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SHARE = re.compile(r"(?P<amount>\d{1,9}(\.\d{1,9})?)(?P<percent>%?)")


class ParameterKind(StrEnum):
    """What a value is; `example` of each is in the sentence of a refusal."""

    TEXT = "text"
    TIME = "time"
    DURATION = "duration"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"


EXAMPLES: Mapping[ParameterKind, str] = {
    ParameterKind.TEXT: f"at most {MOST_TEXT} characters",
    ParameterKind.TIME: "2026-11-20T14:05:00Z, 14:05, 'yesterday 14:05', 15m (ago), -15m or now",
    ParameterKind.DURATION: "90s, 15m, 4h or 7d",
    ParameterKind.BYTES: "8Gi, 512Mi or bytes",
    ParameterKind.RATIO: "0.3 or 30%",
    ParameterKind.COUNT: f"a number from 0 to {_MOST_COUNT}",
}
SQL_TYPES: Mapping[ParameterKind, str] = {
    ParameterKind.TEXT: "text",
    ParameterKind.TIME: "timestamptz",
    ParameterKind.DURATION: "interval",
    ParameterKind.BYTES: "bigint",
    ParameterKind.RATIO: "float8",
    ParameterKind.COUNT: "bigint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One value that a question takes."""

    name: str
    kind: ParameterKind
    meaning: str
    default: str | None = None
    """As people would write it; None: the question is not narrowed by it."""
    required: bool = False
    choices: tuple[str, ...] = ()
    """Of a text; empty: any."""

    def value_of(self, given: object, now: datetime) -> Value:
        """From text, or a value that already has the type; None and '' stand for the default.

        Raises: InvalidRequest with the parameter, the value and what would be right.
        """
        if given is None or given == "":
            given = self.default
        if given is None:
            if self.required:
                raise InvalidRequest(f"parameter {self.name} is wanted: {self.meaning}")
            return None
        found = _typed(self.kind, given) if not isinstance(given, str) else None
        if found is None and isinstance(given, str) and "\0" not in given:
            found = _READ[self.kind](given.strip(), now)
        if found is None or (self.choices and found not in self.choices):
            right = " or ".join(self.choices) or EXAMPLES[self.kind]
            raise InvalidRequest(
                f"parameter {self.name}: {str(given)[:60]!r} is no {self.kind}; right is {right}"
            )
        return found


def _typed(kind: ParameterKind, given: object) -> Value:
    """A value that is none of text; None: it is of another type, or out of range."""
    match kind, given:
        case ParameterKind.TIME, datetime() if given.tzinfo is not None:
            return given
        case ParameterKind.DURATION, timedelta() if timedelta() < given <= _MOST_SPAN:
            return given
        case ParameterKind.BYTES | ParameterKind.COUNT, int() if not isinstance(given, bool):
            most = _MOST_BYTES if kind is ParameterKind.BYTES else _MOST_COUNT
            return given if 0 <= given <= most else None
        case ParameterKind.RATIO, int() | float() if not isinstance(given, bool):
            return float(given) if 0 <= given <= 1 else None
    return None


def _text(given: str, now: datetime) -> Value:
    return given if len(given) <= MOST_TEXT and given.isprintable() else None


def _time(given: str, now: datetime) -> Value:
    return moment(given, now)


def moment(given: str, now: datetime) -> datetime | None:
    """The moment that a person wrote, in UTC; None where it is none.

    RFC 3339, `now`, `14:05`, `yesterday 14:05`, and `15m` or `-15m` for so long ago.
    """
    if given == "now":
        return now
    ago = given.removeprefix("-")
    if _SPAN.fullmatch(ago):
        span = _duration(ago, now)
        return now - span if isinstance(span, timedelta) else None
    clock = _CLOCK.fullmatch(given.lower())
    try:
        if clock is not None:
            day = now.astimezone(UTC) - timedelta(days=1 if clock["day"] == "yesterday" else 0)
            return day.replace(
                hour=int(clock["h"]),
                minute=int(clock["m"]),
                second=int(clock["s"] or 0),
                microsecond=0,
            )
        found = datetime.fromisoformat(given)
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        # Also refuses what has no UTC equivalent in the calendar.
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _duration(given: str, now: datetime) -> Value:
    if _SPAN.fullmatch(given) is None or len(given) > _LONGEST_SPAN:
        return None
    span = timedelta(
        seconds=sum(int(amount) * _UNIT_S[unit] for amount, unit in _PART.findall(given))
    )
    return span if timedelta() < span <= _MOST_SPAN else None


def _bytes(given: str, now: datetime) -> Value:
    found = _MEMORY.fullmatch(given)
    if found is None:
        return None
    return _typed(ParameterKind.BYTES, int(found["amount"]) * _MEMORY_UNITS[found["unit"]])


def _ratio(given: str, now: datetime) -> Value:
    found = _SHARE.fullmatch(given)
    if found is None:
        return None
    return _typed(ParameterKind.RATIO, float(found["amount"]) / (100 if found["percent"] else 1))


def _count(given: str, now: datetime) -> Value:
    return _typed(ParameterKind.COUNT, int(given)) if re.fullmatch(r"\d{1,9}", given) else None


_READ: Mapping[ParameterKind, Callable[[str, datetime], Value]] = {
    ParameterKind.TEXT: _text,
    ParameterKind.TIME: _time,
    ParameterKind.DURATION: _duration,
    ParameterKind.BYTES: _bytes,
    ParameterKind.RATIO: _ratio,
    ParameterKind.COUNT: _count,
}
