"""A server that closes, or speaks no TLS, is distinguished from one that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hamicommon.errors import Unavailable
from hamictl import scheduler_client
from hamictl.scheduler_client import SchedulerAddress, SchedulerClient

from tests.waiting import PATIENCE_S


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close every connection, like a `kubectl port-forward` whose pod is gone."""
    del reader
    writer.close()


async def _reads_and_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(64)
    writer.close()


async def _answers_in_plain_text(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.read(64)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        (_closes, "start it again if that pod is gone"),
        (_reads_and_closes, "start it again if that pod is gone"),
        (_answers_in_plain_text, "the port does not use TLS"),
    ],
)
async def test_what_answers_instead_of_tls_is_named(
    server: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], sentence: str
) -> None:
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        address = SchedulerAddress(url=f"https://localhost:{port}")
        with pytest.raises(Unavailable, match=sentence):
            await SchedulerClient(address).get("/v1/nodes")


class _Server:
    """Answers probes if it is alive, and everything else when it is released."""

    def __init__(self, *, alive: bool) -> None:
        self.probed, self._alive = asyncio.Event(), alive

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if path == b"/healthz":
            self.probed.set()
        elif self._alive:
            await self.probed.wait()
        if self._alive:
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"items":[]}')
            await writer.drain()
        else:
            await reader.read()
        writer.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_client, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(scheduler_client, "PROBE_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_a_service_that_takes_connections_and_answers_nothing_is_given_up() -> None:
    server = _Server(alive=False)
    async with await asyncio.start_server(server.handle, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        address = SchedulerAddress(url=f"http://127.0.0.1:{port}", log="scheduler.log", restarts=1)
        with pytest.raises(Unavailable) as caught:
            await SchedulerClient(address).post("/v1/simulate", {}, timeout_s=PATIENCE_S)

    assert str(caught.value).endswith(
        "it hangs or was stopped; it was restarted once; its log is scheduler.log"
    )


async def test_a_service_that_is_busy_and_alive_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_client, "FIRST_WAIT_S", 0.05)
    server = _Server(alive=True)
    async with await asyncio.start_server(server.handle, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        client = SchedulerClient(SchedulerAddress(url=f"http://127.0.0.1:{port}"))

        assert await client.rows("/v1/nodes") == []
