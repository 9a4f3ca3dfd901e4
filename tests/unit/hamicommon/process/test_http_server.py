"""Serving HTTP inside a service's own loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.process.http_server import JoinedWrites, run, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


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
