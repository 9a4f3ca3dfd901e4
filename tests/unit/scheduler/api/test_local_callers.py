"""A port without tokens is not for browsers, and not under the name of another site."""

from __future__ import annotations

import httpx
import pytest
from hami_scheduler.api.operator_access import LocalCallers
from starlette.types import Receive, Scope, Send


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def send_request(url: str, headers: dict[str, str], method: str = "GET") -> httpx.Response:
    transport = httpx.ASGITransport(LocalCallers(answer))
    async with httpx.AsyncClient(transport=transport) as http:
        return await http.request(method, url, headers=headers)


@pytest.mark.parametrize(
    "host",
    [
        "localhost:9443",
        "127.0.0.1:19443",
        "[::1]:1",
        "[::1]",
        "10.0.0.7:9443",
        "scheduler:9443",
        "hami-scheduler.hami-system.svc:443",
        "hami-scheduler.hami-system.svc.cluster.local",
    ],
)
async def test_names_of_the_machine_and_of_the_cluster_are_served(host: str) -> None:
    assert (await send_request("http://x/v1/allocations", {"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:25962", "127.0.0.1.evil.example", "svc.evil.example", ""]
)
async def test_another_sites_name_is_refused(host: str) -> None:
    answer = await send_request("http://x/v1/allocations", {"host": host})

    assert answer.status_code == 403
    assert f"Host is '{host}'" in answer.text


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/adopt", "/v1/dead-letters/1/send", "/bind"])
async def test_what_another_sites_page_sends_is_refused(method: str, path: str) -> None:
    headers = {
        "host": "127.0.0.1:1",
        "origin": "https://evil.example",
        "content-type": "text/plain",
    }
    answer = await send_request(f"http://x{path}", headers, method)

    assert answer.status_code == 403
    assert "a page of 'https://evil.example' sent this call" in answer.text


async def test_a_name_that_the_ports_certificate_holds_is_served() -> None:
    assert (await send_request("https://sched.corp.example/v1/nodes", {})).status_code == 200
