"""Types that describe a question: parameters, columns with units, and the key of its rows.

Users write values of parameters as text. Times are RFC 3339, `now`, `-15m` or `15m` (before now),
`14:05` and `yesterday 14:05` (UTC); amounts of memory `8Gi` or bytes; shares `0.3` or `30%`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TypeAlias

from hamicommon.errors import InvalidRequest

Value: TypeAlias = str | int | float | datetime | None
"""Value of a parameter; None: not given, and without a default."""

MAX_TEXT = 253
"""Maximum characters of a text, as of the longest Kubernetes name (RFC 1123, DNS subdomain)."""
_MAX_BYTES = 1 << 60
_MAX_COUNT = 1_000_000
_MAX_SPAN = timedelta(days=3660)
_MAX_SPAN_TEXT = 60
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(?:\d{1,9}[smhdw])+")
_PART = re.compile(r"(\d{1,9})([smhdw])")
_CLOCK = re.compile(r"((?P<day>yesterday|today)\s+)?(?P<h>\d{1,2}):(?P<m>\d{2})(:(?P<s>\d{2}))?")
_MEMORY = re.compile(r"(?P<amount>\d{1,18})(?P<unit>|Ki|Mi|Gi|Ti)")
_MEMORY_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SHARE = re.compile(r"(?P<amount>\d{1,9}(\.\d{1,9})?)(?P<percent>%?)")


class ParameterKind(StrEnum):
    """Kind of a parameter's value; refusals name an example of it."""

    TEXT = "text"
    TIME = "time"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"


EXAMPLES: Mapping[ParameterKind, str] = {
    ParameterKind.TEXT: f"at most {MAX_TEXT} characters",
    ParameterKind.TIME: "2026-11-20T14:05:00Z, 14:05, 'yesterday 14:05', 15m (ago), -15m or now",
    ParameterKind.BYTES: "8Gi, 512Mi or bytes",
    ParameterKind.RATIO: "0.3 or 30%",
    ParameterKind.COUNT: f"a number from 0 to {_MAX_COUNT}",
}
SQL_TYPES: Mapping[ParameterKind, str] = {
    ParameterKind.TEXT: "text",
    ParameterKind.TIME: "timestamptz",
    ParameterKind.BYTES: "bigint",
    ParameterKind.RATIO: "float8",
    ParameterKind.COUNT: "bigint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of a question."""

    name: str
    kind: ParameterKind
    meaning: str
    default: str | None = None
    """Default as a user would write it; None: does not restrict the answer."""
    required: bool = False
    choices: tuple[str, ...] = ()
    """Allowed texts; empty: any text."""

    def value_of(self, given: object, now: datetime) -> Value:
        """Convert text, or a value of the right type; None and '' give the default.

        Raises: InvalidRequest with the parameter, the value and what would be right.
        """
        if given is None or given == "":
            given = self.default
        if given is None:
            if self.required:
                raise InvalidRequest(f"parameter {self.name} is missing: {self.meaning}")
            return None
        found = _convert(self.kind, given) if not isinstance(given, str) else None
        if found is None and isinstance(given, str) and "\0" not in given:
            found = _READ[self.kind](given.strip(), now)
        if found is None or (self.choices and found not in self.choices):
            right = " or ".join(self.choices) or EXAMPLES[self.kind]
            raise InvalidRequest(f"parameter {self.name} is {str(given)[:60]!r}: use {right}")
        return found


def _convert(kind: ParameterKind, given: object) -> Value:
    """Convert a value that is not text; None: wrong type, or out of range."""
    match kind, given:
        case ParameterKind.TIME, datetime() if given.tzinfo is not None:
            return given
        case ParameterKind.BYTES | ParameterKind.COUNT, int() if not isinstance(given, bool):
            most = _MAX_BYTES if kind is ParameterKind.BYTES else _MAX_COUNT
            return given if 0 <= given <= most else None
        case ParameterKind.RATIO, int() | float() if not isinstance(given, bool):
            return float(given) if 0 <= given <= 1 else None
    return None


def _text(given: str, now: datetime) -> Value:
    return given if len(given) <= MAX_TEXT and given.isprintable() else None


def _time(given: str, now: datetime) -> Value:
    return moment(given, now)


def moment(given: str, now: datetime) -> datetime | None:
    """Parse a time that a person wrote, as UTC; None if it is none.

    RFC 3339, `now`, `14:05`, `yesterday 14:05`, and `15m` or `-15m` for so long ago.
    """
    if given == "now":
        return now
    ago = given.removeprefix("-")
    if _SPAN.fullmatch(ago):
        span = _duration(ago)
        return None if span is None else now - span
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
        # Also refuses times without a UTC equivalent in the calendar.
        return found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _duration(given: str) -> timedelta | None:
    if len(given) > _MAX_SPAN_TEXT:
        return None
    span = timedelta(
        seconds=sum(int(amount) * _UNIT_S[unit] for amount, unit in _PART.findall(given))
    )
    return span if timedelta() < span <= _MAX_SPAN else None


def _bytes(given: str, now: datetime) -> Value:
    found = _MEMORY.fullmatch(given)
    if found is None:
        return None
    return _convert(ParameterKind.BYTES, int(found["amount"]) * _MEMORY_UNITS[found["unit"]])


def _ratio(given: str, now: datetime) -> Value:
    found = _SHARE.fullmatch(given)
    if found is None:
        return None
    return _convert(ParameterKind.RATIO, float(found["amount"]) / (100 if found["percent"] else 1))


def _count(given: str, now: datetime) -> Value:
    return _convert(ParameterKind.COUNT, int(given)) if re.fullmatch(r"\d{1,9}", given) else None


_READ: Mapping[ParameterKind, Callable[[str, datetime], Value]] = {
    ParameterKind.TEXT: _text,
    ParameterKind.TIME: _time,
    ParameterKind.BYTES: _bytes,
    ParameterKind.RATIO: _ratio,
    ParameterKind.COUNT: _count,
}


class ColumnKind(StrEnum):
    """Kind of a column's values; units are base units."""

    TEXT = "text"
    TIME = "time"
    SECONDS = "seconds"
    BYTES = "bytes"
    RATIO = "ratio"
    """Fraction of a whole, 0 to 1, or more if more was taken than there was."""
    COUNT = "count"
    BOOLEAN = "boolean"
    COUNTS = "counts"
    """Object with a count per name."""
    AMOUNT = "amount"
    """Amount in the resource's own unit."""


class Audience(StrEnum):
    """Callers that may ask a question."""

    NAMESPACE = "namespace"
    """Every caller with access; rows of other namespaces are returned without names."""
    CLUSTER = "cluster"
    """Callers that may see the pods of all namespaces."""


_BY_NAME = {
    "cordoned": ColumnKind.BOOLEAN,
    "healthy": ColumnKind.BOOLEAN,
    "repaired": ColumnKind.BOOLEAN,
    "stale": ColumnKind.BOOLEAN,
    "agrees": ColumnKind.BOOLEAN,
    "reason_counts": ColumnKind.COUNTS,
    **dict.fromkeys(("decision", "change", "finding", "call"), ColumnKind.COUNT),
}
_BY_SUFFIX = {
    "_at": ColumnKind.TIME,
    "_s": ColumnKind.SECONDS,
    "_bytes": ColumnKind.BYTES,
    "_ratio": ColumnKind.RATIO,
    "_count": ColumnKind.COUNT,
    "_index": ColumnKind.COUNT,
    "_amount": ColumnKind.AMOUNT,
}
_NAMES = frozenset(
    (
        *("pod_name", "pod_uid", "container", "allocation_id", "owner_kind", "owner_name"),
        *("service_account", "created_by", "username", "trace_id"),
        *("message", "summary", "reason", "subject", "detail", "object"),
    )
)
"""Columns that name users or objects, or free text that may; `namespace` is handled separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerColumn:
    """Column of the answer; `unknown` explains a NULL, empty: there is no NULL."""

    name: str
    kind: ColumnKind
    unknown: str = ""
    none: str = ""
    """Meaning of a NULL that is not unknown (the end of a period that still lasts)."""

    @property
    def names_somebody(self) -> bool:
        """Whether only callers may read it who may read the namespace's pods."""
        return self.name in _NAMES


def columns(
    names: str, *, unknown: Mapping[str, str] | None = None, none: Mapping[str, str] | None = None
) -> tuple[AnswerColumn, ...]:
    """Return columns from names, which determine their kinds (`memory_bytes`, `reserved_at`)."""
    unknown, none = unknown or {}, none or {}
    return tuple(
        AnswerColumn(
            name=name, kind=_kind(name), unknown=unknown.get(name, ""), none=none.get(name, "")
        )
        for name in names.split()
    )


def _kind(name: str) -> ColumnKind:
    if name in _BY_NAME:
        return _BY_NAME[name]
    for suffix, kind in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return kind
    return ColumnKind.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A named question."""

    number: int
    """Number among the twenty questions of docs/sql.md; several questions may share one."""
    name: str
    title: str
    parameters: tuple[Parameter, ...]
    columns: tuple[AnswerColumn, ...]
    key: tuple[str, ...]
    """Columns without NULL that order the rows and identify each."""
    descending: bool = False
    audience: Audience = Audience.NAMESPACE
    needs: tuple[frozenset[str], ...] = field(default=())
    """Sets of parameters, of each of which one must be given (a pod's uid or its name)."""

    @property
    def sql(self) -> str:
        """Return the query, with `:name` for parameters."""
        return _sql(self.name)

    def column(self, name: str) -> AnswerColumn:
        """Return the column of this name. Raises: KeyError."""
        return next(column for column in self.columns if column.name == name)


@cache
def _sql(name: str) -> str:
    return (files("hamicommon.ledger.questions") / "sql" / f"{name}.sql").read_text().strip()
