"""HTTP of the agent: /metrics, /healthz (the process lives) and /readyz (it does its work)."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Response
from hamicommon import telemetry
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


def make_routes(registry: CollectorRegistry, not_ready: Callable[[], str]) -> FastAPI:
    """The HTTP application; `not_ready` says what is missing, or nothing."""
    app = FastAPI(
        telemetry={"operation_spans": False, "exclude": telemetry.is_probe},
        title="hami-node-agent",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz(response: Response) -> dict[str, str]:
        missing = not_ready()
        if missing:
            response.status_code = 503
            return {"status": "not ready", "reason": missing}
        return {"status": "ok"}

    return app
