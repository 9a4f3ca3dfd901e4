"""The application of the pages: routes, headers, and one page for every error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from hamicommon.access.checks import NotAllowed, Unauthenticated
from hamicommon.errors import HamiError, InvalidRequest, NotFound
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from hami_metrics.pages.entry import PagesNeeds
from hami_metrics.pages.feed import Feed
from hami_metrics.pages.identity import Identity, LoopbackOnly, Reviewed
from hami_metrics.pages.reading.session import PagesLedger
from hami_metrics.pages.reading.traces import TraceFiles
from hami_metrics.pages.rendering import HEADERS, Renderer
from hami_metrics.pages.views.elements.moments import PageMoment
from hami_metrics.pages.views.elements.viewer import PageViewer
from hami_metrics.pages.web import cluster, lists, past, pods, static, stream
from hami_metrics.pages.web.site import Site
from hami_metrics.questions.asking import Seal

_COMPRESSION = 5
"""Nearly as small as zlib's usual 6 in three quarters of the time."""


def create_pages(
    needs: PagesNeeds,
) -> tuple[ASGIApp, tuple[str, ...], Callable[[], Awaitable[None]]]:
    """The application, the paths of its routes, and what ends its streams."""
    ledger = PagesLedger(needs.ledger)
    identity: Identity = LoopbackOnly()
    if needs.reviews is not None:
        identity = Reviewed(
            needs.reviews,
            proxy=needs.proxy,
            groups_header=needs.groups_header,
            show=needs.show,
        )
    site = Site(
        ledger=ledger,
        feed=Feed(ledger, needs.clock, needs.bulkhead, needs.events_connected),
        identity=identity,
        renderer=Renderer(needs.cluster_name),
        clock=needs.clock,
        seal=Seal(needs.secret),
        traces=TraceFiles(needs.traces),
        trace_url=needs.trace_url,
        prices=needs.prices,
    )
    app, paths = create_app(site)
    return app, paths, site.feed.close


def create_app(site: Site) -> tuple[ASGIApp, tuple[str, ...]]:
    """All routes on these parts, and their paths."""
    app = FastAPI(
        telemetry={"operation_spans": False},
        title="hami-metrics pages",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    paths: list[str] = []
    for room in (static, cluster, lists, pods, past, stream):
        router = room.routes(site)
        paths += [str(getattr(route, "path", "")) for route in router.routes]
        app.include_router(router)

    async def failed(_request: Request, error: Exception) -> Response:
        return _error_page(site, error)

    app.add_exception_handler(HamiError, failed)
    app.add_exception_handler(HTTPException, failed)
    return GZipMiddleware(app, minimum_size=1000, compresslevel=_COMPRESSION), tuple(paths)


def _error_page(site: Site, error: Exception) -> Response:
    status, sentence = _status_and_sentence(error)
    now = site.clock()
    # An error of the viewer's identity must show nothing of the cluster.
    shows = status in (404, 503)
    text = site.renderer.page(
        "states/error.html",
        PageMoment(at=None, now=now),
        viewer=PageViewer(namespaces=frozenset()),
        state=None,
        trouble=site.feed.newest().trouble if shows else None,
        notices=(),
        event_id="",
        status=status,
        sentence=sentence,
        here="",
        subject="",
        at=_at(now),
    )
    headers = dict(HEADERS)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HTMLResponse(text, status_code=status, headers=headers)


def _status_and_sentence(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        # Of a path or a method that no route has.
        return error.status_code, "there is no such page" if error.status_code == 404 else str(
            error.detail
        )
    if isinstance(error, Unauthenticated):
        return 401, str(error)
    if isinstance(error, NotAllowed):
        return 403, str(error)
    if isinstance(error, InvalidRequest):
        return 400, str(error)
    if isinstance(error, NotFound):
        return 404, str(error)
    return 503, str(error)


def _at(now: datetime) -> datetime:
    return now.replace(microsecond=0)
