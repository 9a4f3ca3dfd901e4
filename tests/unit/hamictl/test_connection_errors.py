"""A server that closes, or speaks no TLS, is distinguished from one that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hamicommon.errors import Unavailable
from hamictl.scheduler_address import SchedulerAddress
from hamictl.scheduler_client import SchedulerClient


async def _closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As `kubectl port-forward` does whose pod is gone."""
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
        (_answers_in_plain_text, "TLS is not spoken there"),
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
