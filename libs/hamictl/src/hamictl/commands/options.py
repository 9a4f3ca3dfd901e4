"""Options that several verbs share, and moments as people write them.

A moment is RFC 3339, `14:05`, `yesterday 14:05`, `2026-11-20 14:05` or `-15m`. Without a zone it is
in the reader's own zone, with `--utc` in UTC. A time of day that is still to come is that of today
all the same: a question about the future is answered as such.
"""

from __future__ import annotations

import re
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
WANTED = "2026-11-20T14:05Z, 14:05, `yesterday 14:05`, now, 15m (ago) or -15m is wanted"


def moment(text: str, *, now: datetime, utc: bool = False) -> datetime:
    """The moment that `text` means, in UTC; `now` has a zone.

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
        raise InvalidRequest(f"{text!r} is no time: {WANTED}") from None
    return _in_utc(found, zone, text)


def span(text: str, shown: str | None = None) -> timedelta:
    """A length of time such as `15m`, `2h30m` or `7d`.

    Raises: InvalidRequest when it is none.
    """
    if not _SPAN.fullmatch(text):
        raise InvalidRequest(f"{shown or text!r} is no length of time: 90s, 15m, 2h30m or 7d is")
    parts = {_UNITS[unit]: 0 for unit in _UNITS}
    for count, unit in _PART.findall(text):
        parts[_UNITS[unit]] += int(count)
    try:
        return timedelta(**parts)
    except OverflowError:
        raise InvalidRequest(f"{shown or text!r} is longer than time is counted") from None


def since(text: str, *, now: datetime, utc: bool = False) -> datetime:
    """Read a moment as `moment` does; a length of time alone (`2h`) is so long ago."""
    if _SPAN.fullmatch(text.strip()):
        return _moved_back(now, span(text.strip())).astimezone(UTC)
    return moment(text, now=now, utc=utc)


def _moved_back(now: datetime, length: timedelta) -> datetime:
    try:
        return now - length
    except OverflowError:
        raise InvalidRequest("that is before time is counted") from None


def _of_day(now: datetime, match: re.Match[str], text: str) -> datetime:
    day, hour, minute, second = match.groups()
    try:
        found = now.replace(
            hour=int(hour), minute=int(minute), second=int(second or 0), microsecond=0
        )
    except ValueError:
        raise InvalidRequest(f"{text!r} is no time of day: 00:00 to 23:59 is wanted") from None
    naive = found.replace(tzinfo=None) - timedelta(days=_DAYS_BACK[day])
    return _in_utc(naive, now.tzinfo if now.tzinfo is UTC else None, text)


def _in_utc(found: datetime, zone: tzinfo | None, text: str) -> datetime:
    """A naive moment is of `zone`, or where that is None of this machine's."""
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
"""Names of what a verb may be about -> its kind."""

Answered = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        parser=output_format,
        metavar="FORM",
        envvar="HAMICTL_OUTPUT",
        help="table, wide, json, yaml, csv, name or jsonpath=TEMPLATE",
    ),
]
At = Annotated[
    str, typer.Option("--at", metavar="TIME", help="as it was then (`hamictl help times`)")
]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="not before, as in 2h")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="not after")]
InNamespace = Annotated[
    str, typer.Option("--namespace", "-n", help="of this namespace; without it of all")
]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="of all namespaces, as without -n")
]
Selector = Annotated[
    str, typer.Option("--selector", "-l", metavar="LABELS", help="as in app=a,tier!=b")
]


_AHEAD = timedelta(minutes=1)
"""Difference that is allowed between this machine's clock and the clock the moment is from."""


def moment_of(text: str, option: str) -> datetime | None:
    """The value of `--at` or `--until`; None where it was not given. `2m` is two minutes ago.

    Raises: BadParameter.
    """
    if not text:
        return None
    now = datetime.now(UTC)
    try:
        found = since(text, now=now, utc=presentation().utc)
    except InvalidRequest as exc:
        raise typer.BadParameter(str(exc), param_hint=option) from None
    if option == "--at" and found > now + _AHEAD:
        raise typer.BadParameter(
            f"{text!r} is in the future: {found:%F %T}Z; leave it out for now", param_hint=option
        )
    return found


def since_of(text: str) -> datetime | None:
    """The value of `--since`; None where it was not given. Raises: BadParameter."""
    if not text:
        return None
    try:
        return since(text, now=datetime.now(UTC), utc=presentation().utc)
    except InvalidRequest as exc:
        raise typer.BadParameter(str(exc), param_hint="--since") from None
