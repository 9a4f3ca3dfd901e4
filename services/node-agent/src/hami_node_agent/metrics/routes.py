"""What the agent answers over HTTP: /metrics, /healthz (the process lives) and /readyz (it does
its work); `http_server.py` carries it.

The first names tenants, so it may be set to want a token (`hamicommon.access.scraping`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import orjson
from aiohttp import web
from hamicommon.access.checks import Access, NotAllowed, Unauthenticated, bearer_token
from hamicommon.access.scraping import SCRAPE
from hamicommon.errors import HamiError
from hamicommon.telemetry.exposition import OPENMETRICS, exposition
from prometheus_client import CollectorRegistry

from hami_node_agent.metrics.http_server import Handler


class _Shared:
    """The registry as text, written by one thread a form: scrapes that meet share the text."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writing: dict[bool, asyncio.Task[tuple[bytes, str]]] = {}

    async def text(self, accept: str) -> tuple[bytes, str]:
        form = OPENMETRICS in accept
        writing = self._writing.get(form)
        if writing is None or writing.done():
            writing = asyncio.create_task(asyncio.to_thread(exposition, self._registry, accept))
            self._writing[form] = writing
        # A scrape that is given up leaves the others theirs.
        return await asyncio.shield(writing)


def make_routes(
    registry: CollectorRegistry, not_ready: Callable[[], str], access: Access | None = None
) -> Handler:
    """The answer to each path; `not_ready` names what is missing, or nothing.

    `access`: who may read /metrics; None: everybody.
    """
    shared = _Shared(registry)

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return _json(HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "GET and HEAD are answered"})
        if request.path == "/metrics":
            if access is not None:
                try:
                    given = request.headers.getall("Authorization", ())
                    await access.check(bearer_token(given), SCRAPE)
                except HamiError as exc:
                    return _json(_status(exc), {"detail": str(exc)})
            text, media_type = await shared.text(request.headers.get("Accept", ""))
            return web.Response(body=text, headers={"Content-Type": media_type})
        if request.path == "/healthz":
            return _json(HTTPStatus.OK, {"status": "ok"})
        if request.path == "/readyz":
            missing = not_ready()
            if missing:
                reason = {"status": "not ready", "reason": missing}
                return _json(HTTPStatus.SERVICE_UNAVAILABLE, reason)
            return _json(HTTPStatus.OK, {"status": "ok"})
        return _json(HTTPStatus.NOT_FOUND, {"detail": "/metrics, /healthz and /readyz are here"})

    return answer


def _status(error: HamiError) -> HTTPStatus:
    if isinstance(error, Unauthenticated):
        return HTTPStatus.UNAUTHORIZED
    refused = isinstance(error, NotAllowed)
    return HTTPStatus.FORBIDDEN if refused else HTTPStatus.SERVICE_UNAVAILABLE


def _json(status: HTTPStatus, content: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(content), content_type="application/json")
