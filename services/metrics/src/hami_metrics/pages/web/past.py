"""`/history`, `/showback`: the cluster at any moment, and whose its time was."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from hamicommon.ledger.questions import MOST_ROWS, answer

from hami_metrics.pages.reading.history import read_strip
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.views.history import WINDOWS, history_page, window_around
from hami_metrics.pages.views.showback import (
    BASES,
    ShowbackPage,
    as_csv,
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
    async def showback_csv(request: Request) -> Response:
        _, page = await _showback(site, request)
        name = f"showback-{page.month}-{page.basis}.csv"
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(as_csv(page), media_type="text/csv; charset=utf-8", headers=headers)

    return router


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
    )
    return asked, page
