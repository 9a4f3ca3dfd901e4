"""HTTP for the kubelet's probes and a scrape now and then, on the event loop.

In: a handler of requests. Out: one answer for each connection, which is closed after it: an agent
whose loop hangs does not answer /healthz. What is asked is `routes.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web
from hamicommon.process.listening_socket import listen

logger = logging.getLogger(__name__)
# aiohttp's own: a traceback at each malformed request, which anybody may send.
_protocol_logger = logging.getLogger(f"{__name__}.protocol")
_protocol_logger.setLevel(logging.CRITICAL)

PATIENCE_S = 5.0
"""From a connection's begin to its end: a client that sends or reads slowly is hung up on."""
MOST_AT_ONCE = 64
"""Connections. One more closes the oldest: an answer takes milliseconds, so that client sends
nothing or reads nothing."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Server(web.Server):
    """Bounds connections in number and time, which aiohttp leaves to a proxy in front of it."""

    def __init__(self, handler: Handler) -> None:
        # Nobody waits for the answer to a connection that has ended.
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
        if len(self._open) >= MOST_AT_ONCE:
            oldest, _ = self._open[next(iter(self._open))]
            oldest.abort()
        # Not close(): that would wait for the client to read what is on its way.
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
    """Serves while the block runs; yields the port. Requests under way are answered at the end.

    Raises: InvalidRequest, Unavailable.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await handler(request)
        except Exception:  # one request's fault; the next may be another one
            logger.exception("request failed", extra={"path": request.path})
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
