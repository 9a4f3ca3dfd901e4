"""HTTP/1.1 for those who ask one thing: the kubelet's probes and a scrape now and then.

One GET per connection, then it is closed: the kubelet's probes want no more, and Prometheus does
not mind to connect again. A general server would be 4 MB more on every node. It runs in the agent's
own event loop, so that an agent whose loop hangs does not answer /healthz. What is asked is
`routes.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import urlsplit

from hamicommon.cancellation import end
from hamicommon.listening import listen

logger = logging.getLogger(__name__)

LONGEST_HEAD = 16 * 1024
"""Bytes of a request line and its headers; probes and scrapes send some hundred."""
PATIENCE_S = 10.0
"""From the connection to its end: a client that says or takes nothing holds no descriptor."""
GRACE_S = 2.0
"""At the end of the agent, for who has asked by then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    status: HTTPStatus
    content_type: str
    body: bytes


Answering = Callable[[str], Awaitable[Answer]]
"""From a path to its answer."""


@asynccontextmanager
async def serving(answering: Answering, bind: str) -> AsyncIterator[int]:
    """Serves while the block runs; yields the port. Raises: InvalidRequest, Unavailable."""
    sock = listen(bind)
    conversations: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.get_running_loop().create_task(_converse(answering, reader, writer))
        conversations.add(talk)
        talk.add_done_callback(conversations.discard)

    server = await asyncio.start_server(begin, sock=sock, limit=LONGEST_HEAD)
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.close()
        if conversations:
            await asyncio.wait(conversations, timeout=GRACE_S)
        await end(conversations)


async def _converse(
    answering: Answering, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        # Whoever has gone, or neither speaks nor listens, gets nothing.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(PATIENCE_S):
                writer.write(await _response(answering, reader))
                writer.close()
                await writer.wait_closed()
    finally:
        writer.transport.abort()


async def _response(answering: Answering, reader: asyncio.StreamReader) -> bytes:
    try:
        method, target = _asked(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.LimitOverrunError:
        return _bytes(_said(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
    except ValueError:
        return _bytes(_said(HTTPStatus.BAD_REQUEST))
    if method not in ("GET", "HEAD"):
        return _bytes(_said(HTTPStatus.METHOD_NOT_ALLOWED))
    try:
        answer = await answering(target)
    except Exception:  # one question's fault; the next may be another one
        logger.exception("no answer", extra={"path": target})
        answer = _said(HTTPStatus.INTERNAL_SERVER_ERROR)
    return _bytes(answer, with_body=method == "GET")


def _asked(head: bytes) -> tuple[str, str]:
    """Method and path of a request; no header counts here. Raises: ValueError."""
    line = head.partition(b"\r\n")[0].decode("ascii")
    method, target, version = line.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    return method, urlsplit(target).path


def _said(status: HTTPStatus) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{status.phrase}\n".encode())


def _bytes(answer: Answer, *, with_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {answer.status.phrase}",
        f"Date: {formatdate(usegmt=True)}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    return head + answer.body if with_body else head
