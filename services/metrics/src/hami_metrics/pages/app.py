"""Application of the pages: routes, static files, and error pages."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, FastAPI, Request, Response
from hamicommon.access.checks import NotAllowed, Unauthenticated
from hamicommon.errors import HamiError, InvalidRequest, NotFound
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages import cards, history, lists, live, overview, pending, pod, showback, usage
from hami_metrics.pages.amounts import PageMoment
from hami_metrics.pages.entry import PagesNeeds
from hami_metrics.pages.feed import Feed
from hami_metrics.pages.identity import Identity, LoopbackOnly, ReviewedIdentity
from hami_metrics.pages.pod_record import TraceFiles
from hami_metrics.pages.readings import PagesLedger
from hami_metrics.pages.rendering import HEADERS, STATIC, Renderer
from hami_metrics.pages.site import PageRequest, Site
from hami_metrics.questions.asking import Seal

COMPRESSION = 5
"""Compression level: nearly as small as zlib's default 6, in three quarters of the time."""
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {path.name: path for path in STATIC.rglob("*.*") if path.suffix in TYPES}
"""Names of static files in addresses -> files of this package; others are not served."""


def create_pages(
    needs: PagesNeeds,
) -> tuple[ASGIApp, tuple[str, ...], Callable[[], Awaitable[None]]]:
    """Return the application, the paths of its routes, and a function that closes its streams."""
    ledger = PagesLedger(needs.ledger)
    identity: Identity = LoopbackOnly()
    if needs.reviews is not None:
        identity = ReviewedIdentity(
            needs.reviews, proxy=needs.proxy, groups_header=needs.groups_header, show=needs.show
        )
    site = Site(
        ledger=ledger,
        feed=Feed(ledger, needs.clock, needs.bulkhead, needs.events_connected),
        identity=identity,
        renderer=Renderer(needs.cluster_name),
        clock=needs.clock,
        seal=Seal(needs.secret),
        trace_url=needs.trace_url,
        prices=needs.prices,
    )
    app = FastAPI(
        telemetry={"operation_spans": False},
        title="hami-metrics pages",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    routers = [
        _static_files(),
        pod.routes(site, TraceFiles(needs.traces)),
        *(page.routes(site) for page in (overview, cards, lists, pending, history, showback)),
        usage.routes(site),
        live.routes(site),
    ]
    for router in routers:
        app.include_router(router)

    async def on_error(_request: Request, error: Exception) -> Response:
        return _error_page(site, error)

    app.add_exception_handler(HamiError, on_error)
    app.add_exception_handler(HTTPException, on_error)
    paths = tuple(str(getattr(route, "path", "")) for each in routers for route in each.routes)
    packed = GZipMiddleware(app, minimum_size=1000, compresslevel=COMPRESSION)
    return packed, paths, site.feed.close


def _static_files() -> APIRouter:
    """Serve `/static/{name}`, which browsers cache until the content changes."""
    router = APIRouter()
    contents = {name: path.read_bytes() for name, path in FILES.items()}
    tags = {name: f'"{hashlib.sha256(text).hexdigest()[:32]}"' for name, text in contents.items()}

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        text = contents.get(name)
        if text is None:
            raise NotFound(f"there is no file {name[:64]!r}")
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(text, media_type=TYPES[FILES[name].suffix], headers=headers)

    return router


def _error_page(site: Site, error: Exception) -> Response:
    status, sentence = _status_and_sentence(error)
    now = site.clock()
    # An error of the viewer's identity must show nothing of the cluster.
    trouble = site.feed.newest().trouble if status in (404, 503) else None
    asked = PageRequest(
        viewer=PageViewer(namespaces=frozenset()),
        moment=PageMoment(at=None, now=now),
        state=None,
        trouble=trouble,
    )
    at = now.replace(microsecond=0)
    page = site.answer(
        asked, "states/error.html", status=status, error=status, sentence=sentence, at=at
    )
    if status == 401:
        page.headers["WWW-Authenticate"] = "Bearer"
    return page


def _status_and_sentence(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        # A path or a method that no route has.
        is_path = error.status_code == 404
        return error.status_code, "there is no such page" if is_path else str(error.detail)
    statuses = {Unauthenticated: 401, NotAllowed: 403, InvalidRequest: 400, NotFound: 404}
    found = next((status for kind, status in statuses.items() if isinstance(error, kind)), 503)
    return found, str(error)
