"""HTTP on three ports: kube-scheduler's, the operators' and the probes'.

The first has the extender's verbs (`extender/app.py`), on loopback. The second has the operators'
API (`/v1/`), for tokens (`operator_access.py`). The third is plain: health and metrics. Where the
second or the third is not configured, the first has their part.
"""

from __future__ import annotations

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from hamicommon import telemetry
from hamicommon.access.checks import Access
from hamicommon.errors import NotFound
from hamicommon.telemetry.exposition import exposition
from starlette.types import ASGIApp

from hami_scheduler.api.http import JSON, answer_errors
from hami_scheduler.api.local_callers import LocalCallers
from hami_scheduler.api.operator_access import OperatorAccess, by_anybody, by_token
from hami_scheduler.api.service import Service
from hami_scheduler.api.v1 import operator_routes
from hami_scheduler.extender.app import ExtenderApp


def create_app(service: Service, *, probes: bool) -> ASGIApp:
    """For kube-scheduler's port; `probes`: no other port has them."""
    others = _bare_app()
    if probes:
        others.include_router(_probes(service))
    rest: ASGIApp = others
    if service.access is None:
        others.include_router(operator_routes(service))
        rest = OperatorAccess(others, by_anybody, service.activity, service.journal)
    else:
        others.include_router(_elsewhere())
    app: ASGIApp = ExtenderApp(service.verbs, activity=service.activity, rest=rest)
    return LocalCallers(app) if service.access is None else app


def create_operator_app(service: Service, access: Access) -> ASGIApp:
    """The operators' API, for who shows a token."""
    app = _bare_app()
    app.include_router(operator_routes(service))
    return OperatorAccess(app, by_token(access), service.activity, service.journal)


def create_probe_app(service: Service) -> ASGIApp:
    """Health and metrics, for the kubelet and Prometheus."""
    app = _bare_app()
    app.include_router(_probes(service))
    return app


def _elsewhere() -> APIRouter:
    api = APIRouter()

    @api.get("/v1/{path:path}")
    @api.post("/v1/{path:path}")
    async def elsewhere(path: str) -> Response:
        raise NotFound(
            f"/v1/{path} is on the operators' port, with a token (docs/hamictl-on-a-cluster.md): "
            "this one is kube-scheduler's"
        )

    return api


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

    @api.get("/healthz")
    async def healthz() -> Response:
        return Response("ok")

    @api.get("/readyz")
    async def readyz() -> Response:
        missing = await service.readiness()
        body = orjson.dumps({"ready": not missing, "missing": dict(missing)})
        return Response(body, status_code=503 if missing else 200, media_type=JSON)

    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        await service.measure()
        accept = request.headers.get("accept", "")
        text, media_type = exposition(service.instruments.registry, accept)
        return Response(text, media_type=media_type)

    return api
