"""HTTP of the agent, on real sockets."""

import asyncio
import logging
from contextlib import suppress
from http import HTTPStatus

import httpx
import pytest
from hami_node_agent.metrics import http_server as subject
from hami_node_agent.metrics.http_server import Answer, serving
from hami_node_agent.metrics.routes import make_routes
from prometheus_client import CollectorRegistry, Gauge


async def path_itself(path: str) -> Answer:
    return Answer(HTTPStatus.OK, "text/plain", path.encode())


async def said(port: int, request: bytes) -> bytes:
    """Everything that is answered to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        await hang_up(writer)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_agent_answers_its_paths_and_no_others() -> None:
    registry = CollectorRegistry()
    Gauge("cards", "Cards.", registry=registry).set(8)
    missing = "not registered"
    app = make_routes(registry, lambda: missing)
    async with serving(app, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        at = f"http://127.0.0.1:{port}"
        metrics = await http.get(f"{at}/metrics?ignored=1")
        assert (metrics.status_code, "cards 8.0" in metrics.text) == (200, True)
        assert metrics.headers["content-type"].startswith("text/plain; version=")
        assert (await http.get(f"{at}/healthz")).json() == {"status": "ok"}
        refused = await http.get(f"{at}/readyz")
        assert (refused.status_code, refused.json()["reason"]) == (503, "not registered")
        missing = ""
        assert (await http.get(f"{at}/readyz")).status_code == 200
        assert (await http.get(f"{at}/")).status_code == 404


async def test_head_is_get_without_the_body_and_nothing_else_is_allowed() -> None:
    async with serving(path_itself, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        head = await http.head(f"http://127.0.0.1:{port}/healthz")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "8", b"")
        posted = await http.post(f"http://127.0.0.1:{port}/healthz")
        assert posted.status_code == 501


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /x HTTP/1.0", 200),
        (b"GET /x y HTTP/1.1", 400),
        (b"PRI * HTTP/2.0", 505),
        (b"\x16\x03\x01 \xff HTTP/1.1", 501),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1", 414),
        (b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"a: b"] * 200), 431),
    ],
)
async def test_a_request_is_answered_whatever_it_is(request_line: bytes, status: int) -> None:
    async with serving(path_itself, "127.0.0.1:0") as port:
        answer = await said(port, request_line + b"\r\n\r\n")
    # To HTTP/2 the library answers as to HTTP/0.9: a page without a status line.
    assert b"%d" % status in answer


async def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.05)
    async with serving(path_itself, "127.0.0.1:0") as port:
        assert await said(port, b"GET / HTTP/1.1\r\n") == b""


async def test_a_client_that_dawdles_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.2)
    async with serving(path_itself, "127.0.0.1:0") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not answer.done():
                writer.write(b"a")
                await writer.drain()
                await asyncio.wait([answer], timeout=0.02)
        with suppress(ConnectionError):
            assert await answer == b""
        await hang_up(writer)


async def test_connections_that_ask_nothing_keep_nobody_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "MOST_AT_ONCE", 2)
    async with serving(path_itself, "127.0.0.1:0") as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        assert (await said(port, b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"/healthz")
        for reader, _ in silent[:9]:  # the oldest went first; with the last there were two
            assert await reader.read() == b""
        assert not silent[9][0].at_eof()
        for _, writer in silent:
            await hang_up(writer)


async def test_a_question_that_fails_is_told_of_and_the_next_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def sometimes(path: str) -> Answer:
        if path == "/bad":
            raise ZeroDivisionError
        return await path_itself(path)

    async with serving(sometimes, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        with caplog.at_level(logging.ERROR):
            assert (await http.get(f"http://127.0.0.1:{port}/bad")).status_code == 500
        assert (await http.get(f"http://127.0.0.1:{port}/good")).text == "/good"
    assert [record.getMessage() for record in caplog.records] == ["no answer"]


async def test_who_has_asked_is_answered_before_the_end_and_who_has_not_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.5)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(path: str) -> Answer:
        begun.set()
        await go_on.wait()
        return await path_itself(path)

    async with serving(slow, "127.0.0.1:0") as port:
        silent, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(said(port, b"GET /slow HTTP/1.1\r\n\r\n"))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert (await answer).endswith(b"/slow")
    assert await silent.read() == b""
    await hang_up(writer)


async def test_a_long_answer_arrives_whole() -> None:
    async def long(_path: str) -> Answer:
        return Answer(HTTPStatus.OK, "text/plain", b"x" * 20_000_000)

    async with serving(long, "127.0.0.1:0") as port:
        answer = await said(port, b"GET / HTTP/1.1\r\n\r\n")
    assert len(answer.partition(b"\r\n\r\n")[2]) == 20_000_000
