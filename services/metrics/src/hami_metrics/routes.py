"""HTTP routes of the metrics service: `/metrics`, `/healthz`, `/readyz` and others.

The first names tenants, so it may be set to want a token (`hamicommon.access.reviews`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from hamicommon import telemetry
from hamicommon.access.checks import Access, NotAllowed, Unauthenticated, bearer_token
from hamicommon.access.reviews import SCRAPE
from hamicommon.errors import HamiError
from hamicommon.telemetry.exposition import exposition
from prometheus_client import CollectorRegistry

NotReadyReasons = Callable[[], list[str]]
"""Function that returns why the service is not ready, one sentence each."""


def create_app(
    registry: CollectorRegistry,
    not_ready_reasons: NotReadyReasons,
    access: Access | None = None,
    routers: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return the application; `access`: check of scrapers, None: everybody may scrape."""
    app = FastAPI(
        telemetry={"operation_spans": False, "exclude": telemetry.is_probe},
        title="hami-metrics",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok")

    @app.get("/readyz")
    async def readyz() -> Response:
        reasons = not_ready_reasons()
        return PlainTextResponse("; ".join(reasons) or "ok", status_code=503 if reasons else 200)

    async def may_scrape(request: Request) -> None:
        if access is None:
            return
        try:
            await access.check(bearer_token(request.headers.getlist("authorization")), SCRAPE)
        except HamiError as exc:
            raise HTTPException(_status(exc), str(exc)) from exc

    # Rendering 40 000 series takes a fifth of a second: in a thread, so that reports continue.
    @app.get("/metrics", dependencies=[Depends(may_scrape)])
    def metrics(request: Request) -> Response:
        text, media_type = exposition(registry, request.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    for router in routers:
        app.include_router(router)
    return app


def _status(error: HamiError) -> int:
    if isinstance(error, Unauthenticated):
        return 401
    return 403 if isinstance(error, NotAllowed) else 503
