"""HTTP of the agent, on real sockets."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from aiohttp import web
from hami_node_agent.metrics import http_server as subject
from hami_node_agent.metrics.http_server import make_routes, serving
from hamicommon.access.checks import Access, ApiCaller, Right
from hamicommon.errors import Unavailable
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tests.waiting import PATIENCE_S


async def path_itself(request: web.BaseRequest) -> web.Response:
    return web.Response(text=request.path)


async def answer_to(port: int, request: bytes) -> bytes:
    """Return the whole answer to these bytes."""
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
        assert metrics.headers["server"] == "hami-node-agent"
        assert (await http.get(f"{at}/healthz")).json() == {"status": "ok"}
        refused = await http.get(f"{at}/readyz")
        assert (refused.status_code, refused.json()["reason"]) == (503, "not registered")
        missing = ""
        assert (await http.get(f"{at}/readyz")).status_code == 200
        assert (await http.get(f"{at}/")).status_code == 404


class Reviews:
    """`scraper` may get /metrics, `other` may not."""

    async def whose(self, token: str) -> ApiCaller:
        if token == "away":
            raise Unavailable("Kubernetes API: connection refused")
        return ApiCaller(username=token)

    async def may(self, caller: ApiCaller, right: Right) -> bool:
        return caller.username == "scraper" and str(right) == "get /metrics"


async def test_the_page_that_names_tenants_wants_a_token_where_it_is_so_set() -> None:
    routes = make_routes(CollectorRegistry(), lambda: "", Access(Reviews()))
    async with serving(routes, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        at = f"http://127.0.0.1:{port}"
        statuses = {
            token: (
                await http.get(f"{at}/metrics", headers={"Authorization": f"Bearer {token}"})
            ).status_code
            for token in ("scraper", "other", "away")
        }
        assert statuses == {"scraper": 200, "other": 403, "away": 503}
        refused = await http.get(f"{at}/metrics")
        assert (refused.status_code, "no token was sent" in refused.text) == (401, True)
        assert (await http.get(f"{at}/healthz")).status_code == 200
        assert (await http.get(f"{at}/readyz")).status_code == 200


async def test_head_is_get_without_the_body_and_nothing_else_is_allowed() -> None:
    routes = make_routes(CollectorRegistry(), lambda: "")
    async with serving(routes, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}/healthz"
        got, head = await http.get(url), await http.head(url)
        length = str(len(got.content))
        assert (head.status_code, head.headers["content-length"], head.content) == (
            200,
            length,
            b"",
        )
        assert (await http.post(url, content=b"x" * 1_000_000)).status_code == 405


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /x HTTP/1.0", 200),
        (b"GET /x y HTTP/1.1", 400),
        (b"GET /x HTTP/1.1", 400),  # no Host
        (b"\x16\x03\x01 \xff HTTP/1.1", 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"a: b"] * 200), 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1", 400),
    ],
)
async def test_a_request_is_answered_whatever_it_is(
    request_line: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(path_itself, "127.0.0.1:0") as port:
        answer = await answer_to(port, request_line + b"\r\n\r\n")
    assert answer.split(maxsplit=2)[1] == b"%d" % status
    # Otherwise any client of the port fills the node's log.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\n"])
async def test_a_client_that_sends_no_request_is_hung_up_on(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.05)
    async with serving(path_itself, "127.0.0.1:0") as port:
        assert await answer_to(port, sent) == b""


async def test_a_client_that_sends_slowly_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.2)
    async with serving(path_itself, "127.0.0.1:0") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nname: ")
        answer = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not answer.done():
                writer.write(b"a")
                await writer.drain()
                await asyncio.wait([answer], timeout=0.02)
        with suppress(ConnectionError):
            assert await answer == b""
        await hang_up(writer)


async def test_a_client_that_does_not_read_its_answer_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "PATIENCE_S", 0.2)
    ended, lost = asyncio.Event(), subject._Server.connection_lost

    def notice_end(
        server: subject._Server, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        lost(server, handler, exc)
        ended.set()

    async def long(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"x" * 20_000_000)

    monkeypatch.setattr(subject._Server, "connection_lost", notice_end)
    async with serving(long, "127.0.0.1:0") as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.wait_for(ended.wait(), PATIENCE_S)
        await hang_up(writer)


async def test_connections_that_ask_nothing_keep_nobody_from_being_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "MAX_CONNECTIONS", 2)
    async with serving(path_itself, "127.0.0.1:0") as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        assert (await answer_to(port, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")).endswith(
            b"/healthz"
        )
        for reader, _ in silent[:9]:  # the oldest went first; with the last there were two
            assert await reader.read() == b""
        assert not silent[9][0].at_eof()
        for _, writer in silent:
            await hang_up(writer)


async def test_a_failed_answer_is_logged_and_the_next_request_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def sometimes(request: web.BaseRequest) -> web.Response:
        if request.path == "/bad":
            raise ZeroDivisionError
        return await path_itself(request)

    async with serving(sometimes, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        with caplog.at_level(logging.ERROR):
            failed = await http.get(f"http://127.0.0.1:{port}/bad")
            assert (failed.status_code, "ZeroDivision" in failed.text) == (500, False)
        assert (await http.get(f"http://127.0.0.1:{port}/good")).text == "/good"
    [record] = caplog.records
    assert (record.getMessage(), record.exc_info is None) == ("Failed to answer a request", False)
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_request_under_way_is_answered_at_the_end_and_silent_clients_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.Response:
        begun.set()
        await go_on.wait()
        return await path_itself(request)

    async with serving(slow, "127.0.0.1:0") as port:
        silent, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = asyncio.create_task(answer_to(port, b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n"))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert (await answer).endswith(b"/slow")
    assert await silent.read() == b""
    await hang_up(writer)


async def test_a_long_answer_arrives_whole() -> None:
    async def long(_request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"x" * 20_000_000)

    async with serving(long, "127.0.0.1:0") as port:
        answer = await answer_to(port, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert len(answer.partition(b"\r\n\r\n")[2]) == 20_000_000


class Slow(Collector):
    """A collector that blocks, as one that reads a sick disk does."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        self.begun += 1
        self.go_on.wait()
        yield GaugeMetricFamily("slow", "Slow.", value=1)


async def test_scrapes_that_take_long_occupy_one_thread_and_hold_up_no_probe() -> None:
    slow, registry = Slow(), CollectorRegistry(auto_describe=False)
    registry.register(slow)
    began = slow.begun
    routes = make_routes(registry, lambda: "")
    async with serving(routes, "127.0.0.1:0") as port, httpx.AsyncClient() as http:
        url = f"http://127.0.0.1:{port}"
        scrapes = [asyncio.create_task(http.get(f"{url}/metrics")) for _ in range(20)]
        try:
            assert (await http.get(f"{url}/healthz")).status_code == 200
        finally:
            slow.go_on.set()
        texts = [(await scrape).text for scrape in scrapes]
    assert all("slow 1.0" in text for text in texts)
    assert slow.begun - began < len(scrapes)
