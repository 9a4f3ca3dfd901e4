"""HTTP of the metrics service: `/metrics`, `/healthz`, `/readyz`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Response
from fastapi.responses import PlainTextResponse
from hamicommon import telemetry
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

NotReadyReasons = Callable[[], list[str]]
"""Why the service is not ready, one sentence each; empty: it is."""


def create_app(registry: CollectorRegistry, not_ready_reasons: NotReadyReasons) -> FastAPI:
    """The application."""
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

    # Rendering 40 000 series takes a fifth of a second: in a thread, so that reports go on.
    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app
