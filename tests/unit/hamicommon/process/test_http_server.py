"""Serving HTTP inside a service's own loop."""

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.process import http_server
from hamicommon.process.healthcheck import problem
from hamicommon.process.http_server import JoinedWrites, run, serving
from hamicommon.process.listening_socket import listen, parse_bind
from hamicommon.process.trusted_authorities import trusted_until
from hamicommon.tls import authority_certificate, new_key
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
    """Notes the calls."""

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


# --- the answer of the images' HEALTHCHECK


class _Service(BaseHTTPRequestHandler):
    ready = True

    def do_GET(self) -> None:
        ready = self.ready and self.path == "/readyz"
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"" if ready else b"Postgres is not available")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    _Service.ready = True
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ["0.0.0.0", "", "127.0.0.1", "localhost"])
def test_a_ready_service_is_found_at_the_address_of_its_settings(port: int, host: str) -> None:
    assert problem(f"{host}:{port}") is None


def test_a_service_that_is_not_ready_is_unhealthy_with_its_reason(port: int) -> None:
    _Service.ready = False

    assert problem(f":{port}") == "/readyz answers 503: Postgres is not available"


def test_nobody_there_is_unhealthy() -> None:
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
        free = server.server_port

    assert (problem(f"127.0.0.1:{free}") or "").startswith(f"127.0.0.1:{free} does not answer: ")


@pytest.mark.parametrize("bind", ["", "9395", "host:", "host:http"])
def test_what_is_no_address_is_unhealthy_with_a_sentence(bind: str) -> None:
    assert (problem(bind) or "").endswith("is not host:port")


@pytest.mark.parametrize(("ready", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_is_what_docker_reads(port: int, ready: bool, status: int) -> None:
    _Service.ready = ready

    done = subprocess.run(
        [sys.executable, "-m", "hamicommon.process.healthcheck", f":{port}"],
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == status


# --- sockets to listen on


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
    with pytest.raises(InvalidRequest, match="use host:port"):
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


# --- when a client stops being able to verify its server


NOW = datetime(2026, 5, 1, tzinfo=UTC)


def authority(days: int) -> str:
    """An authority of that many days more, as PEM."""
    made = authority_certificate(
        "an authority", new_key(), not_before=NOW, not_after=NOW + timedelta(days=days)
    )
    return made.public_bytes(Encoding.PEM).decode()


def trusting(*authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authorities:
        context.load_verify_locations(cadata="".join(authorities))
    return context


def test_one_authority_is_trusted_until_it_expires() -> None:
    assert trusted_until(trusting(authority(90))) == NOW + timedelta(days=90)


def test_a_renewed_authority_beside_the_old_one_is_what_counts() -> None:
    assert trusted_until(trusting(authority(3), authority(3650))) == NOW + timedelta(days=3650)


def test_without_tls_or_authority_nothing_is_known() -> None:
    assert trusted_until(None) is None
    assert trusted_until(trusting()) is None
