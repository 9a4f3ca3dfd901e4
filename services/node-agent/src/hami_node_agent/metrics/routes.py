"""What the agent answers over HTTP: /metrics, /healthz (the process lives) and /readyz (it does
its work); `serving.py` carries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from hami_node_agent.metrics.http_server import Answer, Answering


def make_routes(registry: CollectorRegistry, not_ready: Callable[[], str]) -> Answering:
    """The answer to each path; `not_ready` says what is missing, or nothing."""

    async def answer(path: str) -> Answer:
        if path == "/metrics":
            text = await asyncio.to_thread(generate_latest, registry)
            return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, text)
        if path == "/healthz":
            return _json(HTTPStatus.OK, {"status": "ok"})
        if path == "/readyz":
            missing = not_ready()
            if missing:
                reason = {"status": "not ready", "reason": missing}
                return _json(HTTPStatus.SERVICE_UNAVAILABLE, reason)
            return _json(HTTPStatus.OK, {"status": "ok"})
        return _json(HTTPStatus.NOT_FOUND, {"detail": "/metrics, /healthz and /readyz are here"})

    return answer


def _json(status: HTTPStatus, content: dict[str, str]) -> Answer:
    return Answer(status, "application/json", orjson.dumps(content))
