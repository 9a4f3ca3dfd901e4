"""What each namespace held of the cards' time, and what became of the rest. Pure.

Seconds stay whole numbers: hours are made for show alone, so that what is shown adds up.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hamicommon.errors import InvalidRequest

from hami_metrics.pages.views.elements.viewer import PageViewer

BASES = ("memory", "cores", "slots", "mixed")
KINDS = ("idle", "stranded", "cordoned", "unhealthy", "unknown")
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLine:
    """One namespace, or what became of time that nobody held."""

    name: str
    card_s: int
    percent: float
    """Of all card time; 0 where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowbackPage:
    """Everything that the template asks for."""

    month: str
    basis: str
    since: datetime
    until: datetime
    so_far: bool
    """The month goes on."""
    held: Sequence[HeldLine]
    rest: Sequence[HeldLine]
    card_s: int
    exact: bool
    """The rows are the cards' time to the second."""
    previous: str
    next: str
    """Empty: it has not begun."""


def month_of(text: str, now: datetime) -> tuple[str, datetime, datetime]:
    """The month's name, its beginning, and its end or now. Raises: InvalidRequest."""
    text = text or f"{now:%Y-%m}"
    found = _MONTH.fullmatch(text)
    if not found:
        raise InvalidRequest(f"month: {text!r} is no month; write one like 2026-11")
    since = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    if since > now:
        raise InvalidRequest(f"month: {text} has not begun")
    return text, since, min(_later(since, 1), now)


def _later(month: datetime, by: int) -> datetime:
    place = month.year * 12 + month.month - 1 + by
    return month.replace(year=place // 12, month=place % 12 + 1)


def showback_page(
    rows: Iterable[Mapping[str, Any]],
    sums: Iterable[Mapping[str, Any]],
    viewer: PageViewer,
    *,
    month: str,
    basis: str,
    since: datetime,
    until: datetime,
    now: datetime,
) -> ShowbackPage:
    """Of the answers to `showback` and `showback-sum`."""
    held: dict[str, int] = {}
    rest = dict.fromkeys(KINDS, 0)
    for row in rows:
        if row["kind"] == "held":
            name = viewer.namespace(row["namespace"] or "")
            held[name] = held.get(name, 0) + row["card_s"]
        else:
            rest[row["kind"]] = rest.get(row["kind"], 0) + row["card_s"]
    whole = next((row for row in sums if row["type"] == ""), None)
    total = sum(held.values()) + sum(rest.values())
    card_s = total if whole is None else int(whole["card_s"])
    following = _later(since, 1)
    return ShowbackPage(
        month=month,
        basis=basis,
        since=since,
        until=until,
        so_far=until < following,
        held=[
            _line(name, seconds, total)
            for name, seconds in sorted(held.items(), key=lambda item: (-item[1], item[0]))
        ],
        rest=[_line(name, seconds, total) for name, seconds in rest.items()],
        card_s=card_s,
        exact=whole is not None and bool(whole["agrees"]) and card_s == total,
        previous=f"{_later(since, -1):%Y-%m}",
        next=f"{following:%Y-%m}" if following <= now else "",
    )


def _line(name: str, seconds: int, total: int) -> HeldLine:
    return HeldLine(name=name, card_s=seconds, percent=100 * seconds / total if total else 0.0)


def as_csv(page: ShowbackPage) -> str:
    """The same rows for a spreadsheet, in whole seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["month", "basis", "kind", "namespace", "card_seconds"])
    for line in page.held:
        writer.writerow([page.month, page.basis, "held", _harmless(line.name), line.card_s])
    for line in page.rest:
        writer.writerow([page.month, page.basis, line.name, "", line.card_s])
    writer.writerow([page.month, page.basis, "sum", "", page.card_s])
    return text.getvalue()


def _harmless(text: str) -> str:
    """A spreadsheet takes what begins like a formula for one."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
