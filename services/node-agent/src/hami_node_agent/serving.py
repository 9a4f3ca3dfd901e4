"""HTTP for those who ask one thing: the kubelet's probes and a scrape now and then.

The standard library's server, which prometheus_client loads anyway; a general one would be 4 MB
more on every node. Each connection has its own thread and is closed after one answer. Accepting and
answering are the event loop's, so an agent whose loop hangs does not answer /healthz. What is asked
is `routes.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hamicommon.listening import listen

logger = logging.getLogger(__name__)

PATIENCE_S = 5.0
"""For each word of a client, and for an answer: who says or takes nothing holds no descriptor."""


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
        self._answering = answering
        self._loop = asyncio.get_running_loop()

    def answer(self, path: str) -> Answer:
        """Asks the event loop, from another thread."""

        async def answered() -> Answer:
            return await self._answering(path)

        return asyncio.run_coroutine_threadsafe(answered(), self._loop).result(PATIENCE_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went is no matter."""
        logger.debug("connection broken", exc_info=True, extra={"client": str(client_address)})


class _Conversation(BaseHTTPRequestHandler):
    server: _Server

    def setup(self) -> None:
        """Begins with the patience that is due."""
        super().setup()
        self.connection.settimeout(PATIENCE_S)

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
