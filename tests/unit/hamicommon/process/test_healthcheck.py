"""The answer of the images' HEALTHCHECK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from hamicommon.process.healthcheck import problem


class _Service(BaseHTTPRequestHandler):
    ready = True

    def do_GET(self) -> None:
        ready = self.ready and self.path == "/readyz"
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b"" if ready else b"Postgres is not available")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on standard error."""


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
