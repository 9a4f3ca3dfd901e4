"""Page `/showback`: card time per namespace, and time without a holder by kind.

Seconds stay whole numbers and become hours only for display, so that displayed values add up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.ledger.questions import MAX_ROWS, answer
from hamicommon.ledger.showback import (
    CENT,
    UNKNOWN_USE,
    Bill,
    PriceList,
    as_csv,
    as_focus,
    as_json,
    make_bill,
    use_by_namespace,
)

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.cluster import Row
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.site import PageRequest, Site, choice_of, text_of

BASES = ("memory", "cores", "slots", "mixed")
KINDS = ("idle", "stranded", "cordoned", "unhealthy", "unknown")
USE_TIMEOUT_S = 1.0
"""Maximum time that the page waits for use data."""
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLine:
    """Row of one namespace, or of one kind of time without a holder."""

    name: str
    card_s: int
    percent: float
    """Percent of all card time; 0 if there is none."""
    cost: Decimal | None
    """Cost; None: some of it has no price."""
    used_card_s: float | None = None
    """Used part of `card_s`, on average; None: not measured, or no namespace's."""
    idle_percent: float | None = None
    """Percent of hours without core activity; None: unknown, or no namespace's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowbackPage:
    """Values for the template."""

    month: str
    basis: str
    since: datetime
    until: datetime
    so_far: bool
    """Whether the month is not over."""
    held: Sequence[HeldLine]
    rest: Sequence[HeldLine]
    bill: Bill
    """Bill by type of card, for files; hidden namespaces are not named."""
    unpriced: Sequence[str]
    """Types of cards without a price."""
    card_s: int
    exact: bool
    """Whether the rows add up exactly to the cards' time."""
    previous: str
    next: str
    """Name of the next month; empty: it is in the future."""


def month_of(text: str, now: datetime) -> tuple[str, datetime, datetime]:
    """Return the month's name, start, and end or now. Raises: InvalidRequest."""
    text = text or f"{now:%Y-%m}"
    found = _MONTH.fullmatch(text)
    if not found:
        raise InvalidRequest(f"month: {text!r} is not a month; write one like 2026-11")
    since = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    if since > now:
        raise InvalidRequest(f"month: {text} has not begun")
    return text, since, min(_later(since, 1), now)


def _later(month: datetime, by: int) -> datetime:
    place = month.year * 12 + month.month - 1 + by
    return month.replace(year=place // 12, month=place % 12 + 1)


def showback_page(
    rows: Iterable[Row],
    sums: Iterable[Row],
    viewer: PageViewer,
    *,
    month: str,
    basis: str,
    since: datetime,
    until: datetime,
    now: datetime,
    prices: PriceList | None = None,
    use: Iterable[Row] | None = None,
) -> ShowbackPage:
    """Combine the answers to `showback` and `showback-sum` into the page's values.

    `use`: the answer to `namespace-use`; None: there was none in time.
    """
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


def routes(site: Site) -> APIRouter:
    """Serve the bill of a month, as page and as files."""
    router = APIRouter()

    @router.get("/showback")
    async def showback(request: Request) -> Response:
        asked, page = await _bill(site, request, with_use=True)
        return site.answer(asked, "showback.html", page=page, bases=BASES, here="showback")

    @router.get("/showback.csv")
    async def as_csv_file(request: Request) -> Response:
        _, page = await _bill(site, request)
        return _file(page, "csv", as_csv(page.bill).encode(), "text/csv; charset=utf-8")

    @router.get("/showback.json")
    async def as_json_file(request: Request) -> Response:
        _, page = await _bill(site, request)
        return _file(page, "json", as_json(page.bill), "application/json")

    @router.get("/showback-focus.csv")
    async def as_focus_file(request: Request) -> Response:
        _, page = await _bill(site, request)
        if page.bill.prices is None:
            raise NotFound("a FOCUS file needs prices: set HAMI_METRICS_PRICE_LIST of hami-metrics")
        return _file(page, "focus.csv", as_focus(page.bill).encode(), "text/csv; charset=utf-8")

    return router


def _file(page: ShowbackPage, ending: str, content: bytes, media_type: str) -> Response:
    """Return a response that browsers save as a file."""
    name = f"showback-{page.month}-{page.basis}.{ending}"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


async def _bill(
    site: Site, request: Request, *, with_use: bool = False
) -> tuple[PageRequest, ShowbackPage]:
    asked = await site.open_request(request)
    basis = choice_of(request, "basis", BASES, "memory")
    shown = asked.moment.shown
    month, since, until = month_of(text_of(request, "month"), shown)
    parameters: dict[str, object] = {"since": since, "until": until, "basis": basis}
    async with site.ledger.connection() as connection:
        rows = await answer(connection, "showback", parameters, limit=MAX_ROWS)
        sums = await answer(connection, "showback-sum", parameters, limit=MAX_ROWS)
    use = await _use_in_time(site, since, until) if with_use else None
    names = {str(row["namespace"]) for row in rows.rows if row["namespace"]}
    asked = await site.review_names(asked, request, names)
    page = showback_page(
        rows.rows,
        sums.rows,
        asked.viewer,
        month=month,
        basis=basis,
        since=since,
        until=until,
        now=shown,
        prices=site.prices,
        use=use,
    )
    return asked, page


async def _use_in_time(site: Site, since: datetime, until: datetime) -> Sequence[Row] | None:
    """Read all use data; None: it took longer than the page waits."""
    span = {"since": since, "until": until}
    try:
        async with asyncio.timeout(USE_TIMEOUT_S), site.ledger.connection() as connection:
            found = await answer(connection, "namespace-use", span, limit=MAX_ROWS)
    except (TimeoutError, Unavailable):
        return None
    return found.rows if found.next is None else None
