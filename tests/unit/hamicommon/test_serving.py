"""Serving HTTP inside a service's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.serving import listen, parse_bind, run, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":9395", ("0.0.0.0", 9395)),
        ("[::1]:0", ("::1", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_bind(text) == address


@pytest.mark.parametrize("text", ["", "80", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="host:port is wanted"):
        parse_bind(text)


def test_an_address_in_use_is_one_sentence() -> None:
    with listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"can't listen on 127.0.0.1:{port}"):
            listen(f"127.0.0.1:{port}")


async def test_an_answer_waits_for_no_acknowledgement_of_its_head() -> None:
    with listen("127.0.0.1:0") as listening:
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        _, writer = await asyncio.open_connection(*listening.getsockname())
        accepted, _ = await loop.sock_accept(listening)
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await writer.wait_closed()


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


@asynccontextmanager
async def failing(*errors: Exception) -> AsyncIterator[None]:
    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        for error in errors:
            inner.create_task(fail(error))
        outer.create_task(asyncio.sleep(0))
        yield


def test_a_service_that_ends_by_an_error_of_ours_says_one_sentence() -> None:
    with pytest.raises(SystemExit, match=r"^hami-x: no such file$"):
        run("hami-x", failing(InvalidRequest("no such file")))


def test_any_other_error_keeps_its_traceback() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run("hami-x", failing(ZeroDivisionError(), HamiError("ours")))

    assert caught.group_contains(ZeroDivisionError)
