"""HTTP of the agent: /metrics, /healthz (the process lives) and /readyz (it does its work).

Three paths without parameters, answered as ASGI itself: a framework would be a tenth of the agent's
memory, and the agent is on every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

_Answer = tuple[int, str, bytes]
"""Status, content type, body."""


def make_routes(registry: CollectorRegistry, not_ready: Callable[[], str]) -> App:
    """The HTTP application; `not_ready` says what is missing, or nothing."""

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        del receive  # no request here has a body that counts
        status, content_type, body = await _answer(scope["path"], registry, not_ready)
        head = scope["method"] == "HEAD"
        if scope["method"] not in ("GET", "HEAD"):
            status, content_type, body = _json(405, {"detail": "GET is wanted"})
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if head else body})

    return app


async def _answer(path: str, registry: CollectorRegistry, not_ready: Callable[[], str]) -> _Answer:
    if path == "/metrics":
        text = await asyncio.to_thread(generate_latest, registry)
        return 200, CONTENT_TYPE_LATEST, text
    if path == "/healthz":
        return _json(200, {"status": "ok"})
    if path == "/readyz":
        missing = not_ready()
        if missing:
            return _json(503, {"status": "not ready", "reason": missing})
        return _json(200, {"status": "ok"})
    return _json(404, {"detail": "/metrics, /healthz and /readyz are here"})


def _json(status: int, content: dict[str, str]) -> _Answer:
    return status, "application/json", orjson.dumps(content)
