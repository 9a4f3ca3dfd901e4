"""HTTP on three ports: kube-scheduler's, the operators' and the probes'.

The first serves everything, to a client certificate where it is so configured; the extender's verbs
on it are in `extender/app.py`. The second serves the query API (`/v1/`) to tokens
(`operator_access.py`). The third is plain: health and metrics.
"""

from __future__ import annotations

import orjson
from fastapi import APIRouter, FastAPI, Response
from hamicommon import telemetry
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp

from hami_scheduler.api import v1
from hami_scheduler.api.errors import JSON, answer_errors
from hami_scheduler.api.operator_access import OperatorAccess
from hami_scheduler.api.service import Service
from hami_scheduler.extender.app import ExtenderApp
from hami_scheduler.ports.access import Access


def create_app(service: Service) -> ASGIApp:
    """Everything, for kube-scheduler's port."""
    app = _bare_app()
    app.include_router(_probes(service))
    app.include_router(_operator_api(service))
    return ExtenderApp(
        filtering=service.filtering, binding=service.binding, deferred=service.deferred, rest=app
    )


def create_operator_app(service: Service, access: Access) -> ASGIApp:
    """The query API, for who shows a token."""
    app = _bare_app()
    app.include_router(_operator_api(service))
    return OperatorAccess(app, access)


def create_probe_app(service: Service) -> ASGIApp:
    """Health and metrics, for the kubelet and Prometheus."""
    app = _bare_app()
    app.include_router(_probes(service))
    return app


def _bare_app() -> FastAPI:
    app = FastAPI(
        telemetry={"operation_spans": False, "exclude": telemetry.is_probe},
        title="hami-scheduler",
        openapi_url="/v1/openapi.json",
        docs_url=None,
    )
    answer_errors(app)
    return app


def _probes(service: Service) -> APIRouter:
    api = APIRouter()

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

    api.add_api_route("/healthz", healthz)
    api.add_api_route("/readyz", readyz)
    api.add_api_route("/metrics", metrics)
    return api


def _operator_api(service: Service) -> APIRouter:
    api = APIRouter()
    api.include_router(v1.ledger_routes(service.queries))
    api.include_router(v1.pod_routes(service.explainer, service.simulator, service.adopter))
    api.include_router(v1.letter_routes(service.letters))
    return api
