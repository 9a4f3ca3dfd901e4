"""Serving HTTP inside a service's own loop."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.process import http_server
from hamicommon.process.http_server import JoinedWrites, run, serving
from hamilocal.servers.certificates import Authority
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tests.waiting import PATIENCE_S


async def test_a_request_in_flight_is_answered_before_the_end() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_request: Request) -> PlainTextResponse:
        begun.set()
        await go_on.wait()
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/", slow)])
    async with httpx.AsyncClient() as http:
        async with serving(app, "127.0.0.1:0") as port:
            answer = asyncio.create_task(http.get(f"http://127.0.0.1:{port}/"))
            await begun.wait()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        assert (await answer).text == "done"


async def test_an_idle_client_that_reads_nothing_does_not_delay_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not answer the end of TLS, for which the server would wait out its time."""
    monkeypatch.setattr(http_server, "GRACE_S", 10 * PATIENCE_S)
    files = {"certificate_file": tmp_path / "tls.crt", "key_file": tmp_path / "tls.key"}
    Authority.new("test").make_serving("test", **files)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files["certificate_file"], files["key_file"])
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("done"))])

    # asyncio itself would wait for 30 s.
    async with asyncio.timeout(20.0):
        async with serving(app, "127.0.0.1:0", ssl_context=context) as port:
            client = await asyncio.to_thread(answered_connection, port)
        client.close()


def answered_connection(port: int) -> ssl.SSLSocket:
    """A connection on which one request was answered."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    client = context.wrap_socket(connection)
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"done"):
        answer += client.recv(4096)
    return client


class Transport(asyncio.Transport):
    """Notes what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.done


async def test_what_is_written_in_one_turn_leaves_at_once() -> None:
    transport = Transport()
    joined = JoinedWrites(transport)
    joined.write(b"head ")
    joined.write(b"body")
    assert transport.done == []
    await asyncio.sleep(0)
    assert transport.done == [b"head body"]

    joined.write(b"more")
    await asyncio.sleep(0)
    assert transport.done == [b"head body", b"more"]


async def test_a_connection_is_closed_after_what_was_written() -> None:
    transport = Transport()
    joined = JoinedWrites(transport)
    joined.write(b"the last")
    joined.close()
    await asyncio.sleep(0)
    assert transport.done == [b"the last", "closed"]
    assert joined.is_closing()


@asynccontextmanager
async def failing(*errors: Exception) -> AsyncIterator[None]:
    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        for error in errors:
            inner.create_task(fail(error))
        outer.create_task(asyncio.sleep(0))
        yield


def test_a_service_that_ends_by_an_error_of_ours_prints_one_sentence() -> None:
    with pytest.raises(SystemExit, match=r"^hami-x: no such file$"):
        run("hami-x", failing(InvalidRequest("no such file")))


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run("hami-x", failing(ZeroDivisionError(), HamiError("ours")))

    assert caught.group_contains(ZeroDivisionError)
