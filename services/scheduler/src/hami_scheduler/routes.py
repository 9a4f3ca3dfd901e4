"""HTTP: health, metrics and the query API; the extender's verbs are in `extender_app.py`."""

from __future__ import annotations

import orjson
from fastapi import FastAPI, Response
from hamicommon import telemetry
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from hami_scheduler import adoption_routes, explain_routes, operator_routes, query_routes
from hami_scheduler.extender_app import ExtenderApp
from hami_scheduler.service import Service

JSON = "application/json"


def create_app(service: Service) -> ASGIApp:
    """The application over the use cases."""
    app = FastAPI(
        telemetry={"operation_spans": False, "exclude": telemetry.is_probe},
        title="hami-scheduler",
        openapi_url="/v1/openapi.json",
        docs_url=None,
    )

    async def healthz() -> Response:
        return Response("ok")

    async def readyz() -> Response:
        missing = await service.readiness()
        body = orjson.dumps({"ready": not missing, "missing": dict(missing)})
        return Response(body, status_code=503 if missing else 200, media_type=JSON)

    async def metrics() -> Response:
        await service.measure()
        return Response(
            generate_latest(service.instruments.registry), media_type=CONTENT_TYPE_LATEST
        )

    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)
    app.add_api_route("/metrics", metrics)
    app.include_router(query_routes.router(service.queries, service.simulating))
    app.include_router(operator_routes.router(service.queries, service.letters))
    app.include_router(adoption_routes.router(service.adopting))
    app.include_router(explain_routes.router(service.explaining))
    return ExtenderApp(service, app)
