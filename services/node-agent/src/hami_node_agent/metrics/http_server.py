"""Small HTTP server on the event loop, for probes and scrapes.

/metrics, /healthz (the process lives) and /readyz (it does its work) give one answer for each
connection, which is closed after it: an agent whose loop hangs does not answer /healthz. /metrics
names tenants, so it can require a token (`hamicommon.access.reviews`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import orjson
from aiohttp import web
from hamicommon.access.checks import Access, NotAllowed, Unauthenticated, bearer_token
from hamicommon.access.reviews import SCRAPE
from hamicommon.errors import HamiError
from hamicommon.process.listening_socket import listen
from hamicommon.telemetry.exposition import OPENMETRICS, exposition
from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

# aiohttp's own: a traceback at each malformed request, which any client may send.
_protocol_logger = logging.getLogger(f"{__name__}.protocol")
_protocol_logger.setLevel(logging.CRITICAL)

PATIENCE_S = 5.0
"""Maximum duration of a connection."""
MAX_CONNECTIONS = 64
"""Maximum number of connections; one more closes the oldest.

An answer takes milliseconds, so that client sends nothing or reads nothing.
"""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Server(web.Server):
    """Server that bounds the number and the duration of connections."""

    def __init__(self, handler: Handler) -> None:
        # No client waits for the answer after its connection has ended.
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            logger=_protocol_logger,
            lingering_time=0,
        )
        self._open: dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._open) >= MAX_CONNECTIONS:
            oldest, _ = self._open[next(iter(self._open))]
            oldest.abort()
        # Not close(): that would wait for the client to read the buffered data.
        deadline = asyncio.get_running_loop().call_later(PATIENCE_S, transport.abort)
        self._open[handler] = transport, deadline

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        _, deadline = self._open.pop(handler)
        deadline.cancel()
        super().connection_lost(handler, exc)


@asynccontextmanager
async def serving(handler: Handler, bind: str) -> AsyncIterator[int]:
    """Serve while the block runs; yields the port. Running requests are finished at the end.

    Raises: InvalidRequest, Unavailable.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await handler(request)
        except Exception:  # one request's fault; the next may be another one
            logger.exception("Failed to answer a request", extra={"path": request.path})
            response = web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        response.headers["Server"] = "hami-node-agent"
        response.force_close()
        return response

    listening = listen(bind)
    runner = web.ServerRunner(_Server(answer), shutdown_timeout=PATIENCE_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield int(listening.getsockname()[1])
    finally:
        await runner.cleanup()


class _CachedText:
    """Text of a registry, rendered by one thread per format and shared by simultaneous scrapes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writing: dict[bool, asyncio.Task[tuple[bytes, str]]] = {}

    async def text(self, accept: str) -> tuple[bytes, str]:
        form = OPENMETRICS in accept
        writing = self._writing.get(form)
        if writing is None or writing.done():
            writing = asyncio.create_task(asyncio.to_thread(exposition, self._registry, accept))
            self._writing[form] = writing
        # A cancelled scrape does not cancel the others.
        return await asyncio.shield(writing)


def make_routes(
    registry: CollectorRegistry, not_ready: Callable[[], str], access: Access | None = None
) -> Handler:
    """Return the routes; `not_ready` returns what is missing, or an empty text.

    `access`: who may read /metrics; None: every client.
    """
    shared = _CachedText(registry)

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return _json(
                HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "only GET and HEAD are supported"}
            )
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
        return _json(
            HTTPStatus.NOT_FOUND, {"detail": "this port serves /metrics, /healthz and /readyz"}
        )

    return answer


def _status(error: HamiError) -> HTTPStatus:
    if isinstance(error, Unauthenticated):
        return HTTPStatus.UNAUTHORIZED
    refused = isinstance(error, NotAllowed)
    return HTTPStatus.FORBIDDEN if refused else HTTPStatus.SERVICE_UNAVAILABLE


def _json(status: HTTPStatus, content: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(content), content_type="application/json")
