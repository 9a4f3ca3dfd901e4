"""What each namespace held of the cards' time, and what became of the rest. Pure.

Seconds stay whole numbers: hours are made for show alone, so that what is shown adds up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import (
    CENT,
    UNKNOWN_USE,
    Bill,
    PriceList,
    make_bill,
    use_by_namespace,
)

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
    cost: Decimal | None
    """None: a part of it has no price."""
    used_card_s: float | None = None
    """What was used of `card_s`, in the mean; None: not measured, or nobody's."""
    idle_percent: float | None = None
    """Of its time: hours in which no core was at work; None: not known, or nobody's."""


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
    bill: Bill
    """The same by type of card, for files; names nobody whom the viewer may not see."""
    unpriced: Sequence[str]
    """Types of cards without a price."""
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
    prices: PriceList | None = None,
    use: Iterable[Mapping[str, Any]] | None = None,
) -> ShowbackPage:
    """Of the answers to `showback` and `showback-sum`; `use`: of `namespace-use`, None where it was
    not answered."""
    named = [
        {**row, "namespace": viewer.namespace(row["namespace"] or "")}
        if row["kind"] == "held"
        else row
        for row in rows
    ]
    bill = make_bill(named, since=since, until=until, basis=basis, prices=prices)
    seconds = {("", kind): 0 for kind in KINDS}
    costs: dict[tuple[str, str], Decimal | None] = dict.fromkeys(seconds, CENT * 0)
    for each in bill.lines:
        key = (each.namespace if each.kind == "held" else "", each.kind)
        seconds[key] = seconds.get(key, 0) + each.card_s
        before = costs.get(key, CENT * 0)
        costs[key] = None if before is None or each.cost is None else before + each.cost
    whole = next((row for row in sums if row["type"] == ""), None)
    card_s = bill.card_s if whole is None else int(whole["card_s"])
    following = _later(since, 1)

    uses = use_by_namespace(use, basis=basis, name_of=viewer.namespace)

    def line(name: str, key: tuple[str, str]) -> HeldLine:
        share = 100 * seconds[key] / bill.card_s if bill.card_s else 0.0
        found = uses.get(name, UNKNOWN_USE) if key[1] == "held" else UNKNOWN_USE
        return HeldLine(
            name=name,
            card_s=seconds[key],
            percent=share,
            cost=costs[key],
            used_card_s=None if found.used_ratio is None else seconds[key] * found.used_ratio,
            idle_percent=None if found.idle_ratio is None else 100 * found.idle_ratio,
        )

    held = sorted((key for key in seconds if key[1] == "held"), key=lambda k: (-seconds[k], k[0]))
    return ShowbackPage(
        month=month,
        basis=basis,
        since=since,
        until=until,
        so_far=until < following,
        held=[line(key[0], key) for key in held],
        rest=[line(key[1], key) for key in seconds if key[1] != "held"],
        bill=bill,
        unpriced=sorted({one.type for one in bill.lines if one.cost is None and one.card_s}),
        card_s=card_s,
        exact=whole is not None and bool(whole["agrees"]) and card_s == bill.card_s,
        previous=f"{_later(since, -1):%Y-%m}",
        next=f"{following:%Y-%m}" if following <= now else "",
    )
