"""A server that closes connections before its first answer, as one that can't ask about a login."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hamicommon.bus.client import NobodyAnswers
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import Unavailable
from hamicommon.settings import NatsSettings
from pydantic import BaseModel

from tests.servers import Servers
from tests.waiting import eventually

pytestmark = [
    # nats-py leaves the connection of an attempt that timed out to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <StreamWriter:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SUBJECT = "hami.test.question"


class Answer(BaseModel):
    text: str


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def refusing(url: str, *ways: str) -> AsyncIterator[str]:
    """Treats the first connections in these ways after their CONNECT (`closed` without an answer,
    or `silent`), and leads the others to `url`."""
    host, _, port = url.removeprefix("nats://").partition(":")
    handlers: list[asyncio.Task[None] | None] = []
    open_ends: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        open_ends.append(writer)
        way = ways[len(handlers) - 1] if len(handlers) <= len(ways) else ""
        behind, ahead = await asyncio.open_connection(host, int(port))
        open_ends.append(ahead)
        if not way:
            await asyncio.gather(_copy(reader, ahead), _copy(behind, writer))
            return
        writer.write(await behind.readline())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"PING\r\n")
            if way == "silent":
                await reader.read()
        writer.close()
        ahead.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            for end in open_ends:
                end.transport.abort()
            if running := [task for task in handlers if task is not None]:
                await asyncio.wait(running, timeout=10)


@pytest.mark.parametrize(
    "ways",
    [("closed", "silent"), ("silent", "closed"), ("closed", "closed", "closed")],
    ids=" then ".join,
)
async def test_who_was_refused_at_first_is_asked_in_the_end(
    servers: Servers, ways: tuple[str, ...]
) -> None:
    with servers.nats() as url:
        async with (
            refusing(url, *ways) as front,
            open_bus(NatsSettings(url=front, connect_timeout_s=1), "refused") as bus,
            open_bus(NatsSettings(url=url), SCHEDULER_USER) as other,
        ):
            serving = asyncio.create_task(bus.serve(SUBJECT, "", _answer))
            await eventually(lambda: bus.connected and bus.was_up, "the login is taken")

            async def has_subscriber() -> bool:
                try:
                    return b"yes" in await other.request(SUBJECT, Answer(text="?"))
                except (NobodyAnswers, Unavailable):
                    return False

            await eventually(has_subscriber, "its subscription is at the server")
            serving.cancel()
            await asyncio.wait([serving])
    # Now, while its warnings are expected.
    gc.collect()


async def _answer(_subject: str, _body: bytes) -> BaseModel:
    return Answer(text="yes")
