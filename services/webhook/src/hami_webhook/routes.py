"""HTTP routes of the webhook.

`POST /webhook` for pods and `/quotas` for ResourceQuotas (both TLS), `/healthz`, `/readyz`,
`/metrics` (TLS and plain).

A body that is no review gets 400 and one sentence; where its uid is known, the answer is a review,
because the API server shows only those to the user. The story continues in `service.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from hamicommon.admission.registration import QUOTAS_PATH, WEBHOOK_PATH
from hamicommon.telemetry.exposition import exposition
from prometheus_client import CollectorRegistry

from hami_webhook.review import MalformedReview, read_review, refused_response
from hami_webhook.service import ReviewService

NotReadyReasons = Callable[[], list[str]]
"""Function that returns why the service is not ready, one sentence each."""


def create_app(admission: ReviewService, probes: APIRouter, *, max_body_bytes: int) -> FastAPI:
    """Return the application that is served with TLS."""
    app = _bare_app()

    async def respond(request: Request, answer: Callable[[bytes], Awaitable[object]]) -> Response:
        body = await _read(request, max_body_bytes)
        if body is None:
            message = f"the body is longer than {max_body_bytes} bytes"
            return _json({"error": message}, 413)
        try:
            return _json(await answer(body))
        except MalformedReview as exc:
            admission.count_malformed(str(exc))
            if exc.uid:
                return _json(refused_response(exc.uid, exc.api_version, code=400, message=str(exc)))
            return _json({"error": str(exc)}, 400)

    async def on_pod(request: Request) -> Response:
        traceparent = _traceparent(request)
        return await respond(request, lambda body: admission.answer(read_review(body), traceparent))

    async def on_quota(request: Request) -> Response:
        return await respond(
            request, lambda body: admission.answer_quota(read_review(body, "ResourceQuota"))
        )

    # Plain routes: there are no parameters that FastAPI could read or check here.
    app.add_route(WEBHOOK_PATH, on_pod, methods=["POST"])
    app.add_route(QUOTAS_PATH, on_quota, methods=["POST"])
    app.include_router(probes)
    return app


def create_probe_app(probes: APIRouter) -> FastAPI:
    """Return the application without TLS, for probes and Prometheus."""
    app = _bare_app()
    app.include_router(probes)
    return app


def probe_routes(registry: CollectorRegistry, not_ready_reasons: NotReadyReasons) -> APIRouter:
    """Return the routes `/healthz` (alive), `/readyz` (ready) and `/metrics`."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok")

    @router.get("/readyz")
    async def readyz() -> Response:
        reasons = not_ready_reasons()
        return PlainTextResponse("; ".join(reasons) or "ok", status_code=503 if reasons else 200)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        text, media_type = exposition(registry, request.headers.get("accept", ""))
        return Response(text, media_type=media_type)

    return router


def _bare_app() -> FastAPI:
    """Return an application without routes."""
    # No spans of FastAPI's own: each review has one that begins its pod's trace (service.py).
    return FastAPI(
        telemetry={"tracing": False, "metrics": False, "logs": False},
        title="hami-webhook",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )


def _json(content: object, status_code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code, media_type="application/json")


def _traceparent(request: Request) -> str:
    """Return the caller's trace context; most API servers send none."""
    for name, value in request.scope["headers"]:
        if name == b"traceparent":
            return str(value, "latin-1")
    return ""


async def _read(request: Request, limit_bytes: int) -> bytes | None:
    """Return the body, or None if it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            return None
    return bytes(body)
