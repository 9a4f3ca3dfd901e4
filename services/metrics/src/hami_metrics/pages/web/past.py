"""`/history`, `/showback`: the cluster at any moment, and whose its time was."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from hamicommon.errors import NotFound
from hamicommon.ledger.questions import MOST_ROWS, answer
from hamicommon.ledger.showback.formats import as_csv, as_focus, as_json

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
        page = history_page(strip, window, at, now)
        return overview_answer(
            site, asked, request, "history.html", here="history", history=page, windows=WINDOWS
        )

    @router.get("/showback")
    async def showback(request: Request) -> Response:
        asked, page = await _showback(site, request)
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


async def _showback(site: Site, request: Request) -> tuple[Asked, ShowbackPage]:
    asked = await site.asked(request)
    basis = choice_of(request, "basis", BASES, "memory")
    shown = asked.moment.shown
    month, since, until = month_of(text_of(request, "month"), shown)
    parameters: dict[str, object] = {"since": since, "until": until, "basis": basis}
    async with site.ledger.connection() as connection:
        rows = await answer(connection, "showback", parameters, limit=MOST_ROWS)
        sums = await answer(connection, "showback-sum", parameters, limit=MOST_ROWS)
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
    )
    return asked, page
