"""HTTP: the extender, health and metrics. Bodies are raw JSON both ways, for speed and exactness.

The extender always answers 200 with what went wrong in `Error`, as kube-scheduler expects.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import orjson
from fastapi import FastAPI, Request, Response
from hamicommon import telemetry
from hamicommon.errors import HamiError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hami_scheduler import query_routes
from hami_scheduler.extender import (
    FilterResult,
    HostPriorities,
    bind_result,
    parse_bind_args,
    parse_extender_args,
)
from hami_scheduler.service import Service

logger = logging.getLogger(__name__)

JSON = "application/json"
INTERNAL = "internal error of hami-scheduler; its log has the details"


def create_app(service: Service) -> FastAPI:
    """The application over the use cases."""
    app = FastAPI(
        # A decision is a trace of its own (`filtering.py`), and every request is on the hot path.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        title="hami-scheduler",
        openapi_url="/v1/openapi.json",
        docs_url=None,
    )

    async def filter_(request: Request) -> Response:
        async def answer(body: bytes) -> bytes:
            args = parse_extender_args(body)
            with telemetry.log_context(pod_uid=str((args.pod.get("metadata") or {}).get("uid"))):
                return (await service.filtering.filter(args)).to_json()

        return await _answered(request, answer, lambda text: FilterResult(error=text).to_json())

    async def prioritize(request: Request) -> Response:
        async def answer(body: bytes) -> bytes:
            scores = await service.filtering.prioritize(parse_extender_args(body))
            return HostPriorities(scores=scores).to_json()

        return await _answered(request, answer, lambda text: HostPriorities().to_json())

    async def bind(request: Request) -> Response:
        async def answer(body: bytes) -> bytes:
            args = parse_bind_args(body)
            with telemetry.log_context(pod_uid=args.pod_uid, node=args.node):
                return bind_result(await service.binding.bind(args))

        return await _answered(request, answer, bind_result)

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

    # Plain routes: FastAPI's parameter machinery has nothing to do here and takes its time.
    app.add_route("/filter", filter_, methods=["POST"])
    app.add_route("/prioritize", prioritize, methods=["POST"])
    app.add_route("/bind", bind, methods=["POST"])
    app.add_api_route("/healthz", healthz)
    app.add_api_route("/readyz", readyz)
    app.add_api_route("/metrics", metrics)
    app.include_router(query_routes.router(service.queries))
    return app


async def _answered(
    request: Request,
    answer: Callable[[bytes], Awaitable[bytes]],
    refusal: Callable[[str], bytes],
) -> Response:
    """The outermost frame of an extender call: whatever happens, a body in the right shape."""
    try:
        body = await answer(await request.body())
    except HamiError as exc:
        logger.warning("extender call refused", extra={"path": request.url.path, "error": str(exc)})
        body = refusal(str(exc))
    except Exception:  # the outermost frame
        logger.exception("extender call failed", extra={"path": request.url.path})
        body = refusal(INTERNAL)
    return Response(body, media_type=JSON)
