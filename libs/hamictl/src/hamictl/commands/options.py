"""Options that several commands share, and the parsing of times.

A moment is RFC 3339, `14:05`, `yesterday 14:05`, `2026-11-20 14:05` or `-15m`. Without a zone it is
in the reader's own zone, with `--utc` in UTC. A time of day that is still to come is that of today
all the same: a question about the future is answered as such.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated

import typer
from hamicommon.errors import InvalidRequest

from hamictl.output.records import OutputFormat, output_format
from hamictl.output.terminal import presentation

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART = re.compile(r"(\d{1,9})([smhdw])")
_SPAN = re.compile(r"(?:\d{1,9}[smhdw])+")
_TIME_OF_DAY = re.compile(r"(?:(today|yesterday)\s+)?(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DAYS_BACK = {None: 0, "today": 0, "yesterday": 1}
WANTED = "use 2h (two hours ago), 14:05, `yesterday 14:05`, 2026-11-20T14:05Z or now"


def moment(text: str, *, now: datetime, utc: bool = False) -> datetime:
    """Parse a time, and return it in UTC; `now` must have a zone.

    Raises: InvalidRequest, with the forms that are understood.
    """
    given = text.strip()
    if given == "now":
        return now.astimezone(UTC)
    if given.startswith("-"):
        return _moved_back(now, span(given[1:], text)).astimezone(UTC)
    zone = UTC if utc else None
    if match := _TIME_OF_DAY.fullmatch(given.lower()):
        return _of_day(now.astimezone(zone), match, text)
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a time: {WANTED}") from None
    return _in_utc(found, zone, text)


def span(text: str, shown: str | None = None) -> timedelta:
    """Parse a duration such as `15m`, `2h30m` or `7d`.

    Raises: InvalidRequest when it is none.
    """
    if not _SPAN.fullmatch(text):
        raise InvalidRequest(
            f"{shown or text!r} is not a length of time: use 90s, 15m, 2h30m or 7d"
        )
    parts = {_UNITS[unit]: 0 for unit in _UNITS}
    for count, unit in _PART.findall(text):
        parts[_UNITS[unit]] += int(count)
    try:
        return timedelta(**parts)
    except OverflowError:
        raise InvalidRequest(f"{shown or text!r} is too long") from None


def since(text: str, *, now: datetime, utc: bool = False) -> datetime:
    """Parse a time like `moment`; a duration (`2h`) counts back from now."""
    if _SPAN.fullmatch(text.strip()):
        return _moved_back(now, span(text.strip())).astimezone(UTC)
    return moment(text, now=now, utc=utc)


def _moved_back(now: datetime, length: timedelta) -> datetime:
    try:
        return now - length
    except OverflowError:
        raise InvalidRequest("the time is too long ago") from None


def _of_day(now: datetime, match: re.Match[str], text: str) -> datetime:
    day, hour, minute, second = match.groups()
    try:
        found = now.replace(
            hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0
        )
    except ValueError:
        raise InvalidRequest(f"{text!r} is not a time of day: use 00:00 to 23:59") from None
    naive = found.replace(tzinfo=None) - timedelta(days=_DAYS_BACK[day])
    return _in_utc(naive, now.tzinfo if now.tzinfo is UTC else None, text)


def _in_utc(found: datetime, zone: tzinfo | None, text: str) -> datetime:
    """Convert a time without zone, from `zone`, or from this machine's zone if that is None."""
    try:
        if found.tzinfo is None and zone is not None:
            found = found.replace(tzinfo=zone)
        return found.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        raise InvalidRequest(f"{text!r} is out of range: {WANTED}") from None


KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
    **dict.fromkeys(("node", "nodes", "no"), "node"),
    **dict.fromkeys(("card", "cards", "device", "devices"), "card"),
}
"""Accepted names of kinds -> the kind."""


def kind_of(given: str, kinds: Mapping[str, str]) -> str:
    """Return the kind with this name. Raises: BadParameter."""
    if given not in kinds:
        known = ", ".join(dict.fromkeys(kinds.values()))
        raise typer.BadParameter(f"{given!r}: use one of {known}", param_hint="KIND")
    return kinds[given]


def kind_and_name(kind: str, name: str, hint: str = "") -> tuple[str, str]:
    """Return kind and name of `pod NAME` or `pod/NAME`. Raises: BadParameter."""
    if not name:
        kind, _, name = kind.partition("/")
    if kind not in KINDS or not name:
        raise typer.BadParameter(f"use pod NAME, node NAME or card UUID{hint}", param_hint="KIND")
    return KINDS[kind], name


Answered = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        parser=output_format,
        metavar="FORM",
        envvar="HAMICTL_OUTPUT",
        help="output format: table, wide, json, yaml, csv, name or jsonpath=TEMPLATE",
    ),
]
At = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="TIME",
        help="show the state at this time (default: now; see `hamictl help times`)",
    ),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="start of the period: 2h (two hours ago), 14:05, 2026-11-20T14:05Z",
    ),
]
Until = Annotated[
    str, typer.Option("--until", metavar="TIME", help="end of the period (default: now)")
]
InNamespace = Annotated[
    str, typer.Option("--namespace", "-n", help="only this namespace (default: all)")
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="all namespaces, the default")
]
Selector = Annotated[
    str,
    typer.Option(
        "--selector",
        "-l",
        metavar="LABELS",
        help="only objects with these labels, such as app=a,tier!=b",
    ),
]


_AHEAD = timedelta(minutes=1)
"""Allowed difference between this machine's clock and other clocks."""


def moment_of(text: str, option: str) -> datetime | None:
    """Parse the value of `--at` or `--until`; None if not given. `2m` is two minutes ago.

    Raises: BadParameter.
    """
    found = since_of(text, option)
    if found is not None and option == "--at" and found > datetime.now(UTC) + _AHEAD:
        raise typer.BadParameter(
            f"{text!r} is in the future ({found:%F %T}Z); leave the option out for the state now",
            param_hint=option,
        )
    return found


def since_of(text: str, option: str = "--since") -> datetime | None:
    """Parse the value of `--since`; None if not given. Raises: BadParameter."""
    if not text:
        return None
    try:
        return since(text, now=datetime.now(UTC), utc=presentation().utc)
    except InvalidRequest as exc:
        raise typer.BadParameter(str(exc), param_hint=option) from None
