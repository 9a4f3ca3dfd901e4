"""HTTP for those who ask one thing: the kubelet's probes and a scrape now and then.

The standard library's server, which prometheus_client loads anyway; a general one would be 4 MB
more on every node. Each connection has its own thread and is closed after one answer. Accepting and
answering are the event loop's, so an agent whose loop hangs does not answer /healthz. What is asked
is `routes.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hamicommon.process.listening_socket import listen

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""From the connection to its end: who says or takes little holds no thread for long."""
MOST_AT_ONCE = 64
"""Connections. For one more the oldest is hung up on: a question is answered within milliseconds,
so that one asks nothing, or takes no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: HTTPStatus
    content_type: str
    body: bytes


Answering = Callable[[str], Awaitable[Answer]]
"""From a path to its answer."""


class _Server(ThreadingHTTPServer):
    # Who has asked by the end is answered before the process may end.
    daemon_threads = False

    def __init__(self, answering: Answering, bind: str) -> None:
        super().__init__(("", 0), _Conversation, bind_and_activate=False)
        self.socket.close()
        self.socket = listen(bind)
        self.socket.setblocking(False)  # who has gone by the time must not hold the loop
        self._answering = answering
        self._loop = asyncio.get_running_loop()
        self._open: OrderedDict[socket.socket, None] = OrderedDict()  # the oldest first

    def answer(self, path: str) -> Answer:
        """Asks the event loop, from another thread."""

        async def answered() -> Answer:
            return await self._answering(path)

        return asyncio.run_coroutine_threadsafe(answered(), self._loop).result(PATIENCE_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins a conversation, and sees to its end. On the event loop."""
        if len(self._open) >= MOST_AT_ONCE:
            _hang_up(self._open.popitem(last=False)[0])
        self._open[request] = None
        self._loop.call_later(PATIENCE_S, _hang_up, request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to be had
            self._open.pop(request, None)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The conversation, on its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went is no matter."""
        logger.debug("connection broken", exc_info=True, extra={"client": str(client_address)})


class _Conversation(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Answers a GET or a HEAD."""
        try:
            answer = self.server.answer(self.path.partition("?")[0])
        except Exception:  # one question's fault; the next may be another one
            logger.exception("no answer", extra={"path": self.path})
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def version_string(self) -> str:
        """Not which Python this is."""
        return "hami-node-agent"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no events."""
        logger.debug(format, *args)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def serving(answering: Answering, bind: str) -> AsyncIterator[int]:
    """Serves while the block runs; yields the port. Raises: InvalidRequest, Unavailable."""
    server = _Server(answering, bind)
    loop = asyncio.get_running_loop()
    loop.add_reader(server.fileno(), server.handle_request)
    try:
        yield int(server.socket.getsockname()[1])
    finally:
        loop.remove_reader(server.fileno())
        # Waits for the threads, which wait for this loop.
        await asyncio.to_thread(server.server_close)
