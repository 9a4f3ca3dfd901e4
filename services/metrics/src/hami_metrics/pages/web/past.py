"""`/history`, `/showback`: the cluster at any moment, and whose its time was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from hamicommon.errors import NotFound, Unavailable
from hamicommon.ledger.questions import MOST_ROWS, answer
from hamicommon.ledger.showback import as_csv, as_focus, as_json

from hami_metrics.pages.domain.differences import Differences, differences
from hami_metrics.pages.reading.history import read_first, read_strip
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.views.history import WINDOWS, history_page, since_first, window_around
from hami_metrics.pages.views.showback import (
    BASES,
    ShowbackPage,
    month_of,
    showback_page,
)
from hami_metrics.pages.web.cluster import overview_answer
from hami_metrics.pages.web.site import Asked, Site, choice_of, text_of

USE_PATIENCE_S = 1.0
"""For what was used of the bill's time."""


def routes(site: Site) -> APIRouter:
    """On the parts of `site`."""
    router = APIRouter()

    @router.get("/history")
    async def history(request: Request) -> Response:
        asked = await site.asked(request)
        window = choice_of(request, "window", WINDOWS, "24h")
        at, now = asked.moment.shown, asked.moment.now
        since, until = window_around(at, now, window)
        async with site.ledger.look() as connection:
            since = since_first(since, until, at=at, first=await read_first(connection))
            strip = await read_strip(connection, since=since, until=until, at=at)
        page = history_page(strip, window, at, now, playing=text_of(request, "play") == "1")
        compared = await _compared(site, asked, request)
        return overview_answer(
            site,
            asked,
            request,
            "history.html",
            here="history",
            history=page,
            windows=WINDOWS,
            compared=compared,
            differing=frozenset() if compared is None else compared.cards,
        )

    @router.get("/showback")
    async def showback(request: Request) -> Response:
        asked, page = await _showback(site, request, with_use=True)
        return site.answer(
            asked, "showback.html", page=page, bases=BASES, here="showback", subject=""
        )

    @router.get("/showback.csv")
    async def as_csv_file(request: Request) -> Response:
        _, page = await _showback(site, request)
        return _file(page, "csv", as_csv(page.bill).encode(), "text/csv; charset=utf-8")

    @router.get("/showback.json")
    async def as_json_file(request: Request) -> Response:
        _, page = await _showback(site, request)
        return _file(page, "json", as_json(page.bill), "application/json")

    @router.get("/showback-focus.csv")
    async def as_focus_file(request: Request) -> Response:
        _, page = await _showback(site, request)
        if page.bill.prices is None:
            raise NotFound(
                "FOCUS is a list of charges, and there is no price list: "
                "set HAMI_METRICS_PRICE_LIST of hami-metrics"
            )
        return _file(page, "focus.csv", as_focus(page.bill).encode(), "text/csv; charset=utf-8")

    return router


def _file(page: ShowbackPage, ending: str, content: bytes, media_type: str) -> Response:
    """For the viewer's disk."""
    name = f"showback-{page.month}-{page.basis}.{ending}"
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=headers)


async def _showback(
    site: Site, request: Request, *, with_use: bool = False
) -> tuple[Asked, ShowbackPage]:
    asked = await site.asked(request)
    basis = choice_of(request, "basis", BASES, "memory")
    shown = asked.moment.shown
    month, since, until = month_of(text_of(request, "month"), shown)
    parameters: dict[str, object] = {"since": since, "until": until, "basis": basis}
    async with site.ledger.connection() as connection:
        rows = await answer(connection, "showback", parameters, limit=MOST_ROWS)
        sums = await answer(connection, "showback-sum", parameters, limit=MOST_ROWS)
    span = {"since": since, "until": until}
    use = await _in_time(site, "namespace-use", span) if with_use else None
    names = {str(row["namespace"]) for row in rows.rows if row["namespace"]}
    asked = await site.again(asked, request, names)
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


async def _compared(site: Site, asked: Asked, request: Request) -> Differences | None:
    """What is not so now, where that is asked for; None: it is not, or now is unknown."""
    if text_of(request, "compare") != "1" or not asked.moment.past or asked.state is None:
        return None
    now = (await site.feed.look()).state
    return None if now is None else differences(asked.state, now)


async def _in_time(
    site: Site, question: str, parameters: Mapping[str, object]
) -> Sequence[Mapping[str, Any]] | None:
    """All rows; None where a large ledger takes longer than the page waits: the bill has no part
    in it, and is shown."""
    try:
        async with asyncio.timeout(USE_PATIENCE_S), site.ledger.connection() as connection:
            found = await answer(connection, question, parameters, limit=MOST_ROWS)
    except (TimeoutError, Unavailable):
        return None
    return found.rows if found.next is None else None
