"""A reverse proxy before the API server that misbehaves as overloaded ones do.

`proxy_services(system)` points the scheduler and the agents at it: the kubeconfig is rewritten and
they are restarted. kube-scheduler, the kubelets and the test itself keep the direct connection.
"""

import asyncio
import itertools
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from tests.e2e.system import System
from tests.faults.processes import crash

HELD_PAUSE_S = 0.05
WRITES = ("POST", "PUT", "PATCH", "DELETE")
_EXPIRED = {
    "type": "ERROR",
    "object": {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "message": "too old resource version: 1 (2)",
        "code": 410,
    },
}


@dataclass(slots=True)
class ApiProxy:
    """A proxy of the API server with faults, whose fields may be set while it runs."""

    status: int = 0
    """Answered in place of a forwarded request; 0: all are forwarded."""
    every: int = 2
    """Each so manieth request gets `status`."""
    lose_answers: bool = False
    """Writes are carried out, and their connection is closed without an answer."""
    delay_s: float = 0.0
    holds_watches: bool = False
    """Watches show nothing until it is False again; then everything that they missed."""
    refused: int = 0
    lost: int = 0
    expired: int = 0
    url: str = ""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _watches: set[asyncio.Event] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop | None = None

    def expire_watches(self) -> None:
        """End every watch that is open with 410, as after a compaction."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: [event.set() for event in self._watches])

    async def handle(
        self, request: web.Request, session: aiohttp.ClientSession, server: str
    ) -> web.StreamResponse:
        """One request."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.status and next(self._numbers) % self.every == 0:
            self.refused += 1
            headers = {"Retry-After": "1"} if self.status == 429 else {}
            body = {"kind": "Status", "code": self.status, "message": "the proxy refuses"}
            return web.json_response(body, status=self.status, headers=headers)
        body_bytes = await request.read()
        async with session.request(
            request.method,
            f"{server}{request.path_qs}",
            data=body_bytes or None,
            headers={k: v for k, v in request.headers.items() if k.lower() in _FORWARDED},
        ) as answer:
            if "watch=true" in request.query_string:
                return await self._watch(request, answer)
            content = await answer.read()
        if self.lose_answers and request.method in WRITES:
            self.lost += 1
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=content, status=answer.status, content_type=answer.content_type)

    async def _watch(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await out.prepare(request)
        expired = asyncio.Event()
        self._watches.add(expired)
        over = asyncio.ensure_future(expired.wait())
        chunks = answer.content.iter_any()
        try:
            while True:
                more = asyncio.ensure_future(anext(chunks, None))
                await asyncio.wait({more, over}, return_when=asyncio.FIRST_COMPLETED)
                if not more.done():
                    more.cancel()
                    self.expired += 1
                    await out.write(json.dumps(_EXPIRED).encode() + b"\n")
                    return out
                chunk = more.result()
                if chunk is None:
                    return out
                while self.holds_watches:
                    await asyncio.sleep(HELD_PAUSE_S)
                await out.write(chunk)
        except (aiohttp.ClientError, ConnectionError):
            return out
        finally:
            over.cancel()
            self._watches.discard(expired)


_FORWARDED = ("authorization", "accept", "content-type")


@contextmanager
def proxy_services(system: System, services: Sequence[str]) -> Iterator[ApiProxy]:
    """The services talk through the proxy inside the block."""
    kubeconfig = Path(system.described["kubeconfig"])
    straight = kubeconfig.read_text()
    config = yaml.safe_load(straight)
    with _serving(config["clusters"][0]["cluster"]) as proxy:
        config["clusters"][0]["cluster"] = {"server": proxy.url}
        try:
            _restart(system, kubeconfig, yaml.safe_dump(config), services)
            yield proxy
        finally:
            proxy.status, proxy.lose_answers, proxy.delay_s = 0, False, 0.0
            proxy.holds_watches = False
            _restart(system, kubeconfig, straight, services)


def _restart(system: System, kubeconfig: Path, text: str, services: Sequence[str]) -> None:
    kubeconfig.write_text(text)
    crash(system, *services)


@contextmanager
def _serving(cluster: Mapping[str, str]) -> Iterator[ApiProxy]:
    """Run the proxy in a separate thread."""
    proxy = ApiProxy()
    ready, over = threading.Event(), asyncio.Event()

    def body() -> None:
        asyncio.run(_serve(proxy, cluster, ready, over))

    thread = threading.Thread(target=body, name="api-proxy")
    thread.start()
    try:
        assert ready.wait(10), "the proxy does not start"
        yield proxy
    finally:
        assert proxy._loop is not None
        proxy._loop.call_soon_threadsafe(over.set)
        thread.join(15)


async def _serve(
    proxy: ApiProxy, cluster: Mapping[str, str], ready: threading.Event, over: asyncio.Event
) -> None:
    proxy._loop = asyncio.get_running_loop()
    context = ssl.create_default_context()
    if "certificate-authority" in cluster:
        context.load_verify_locations(cafile=cluster["certificate-authority"])
    else:
        import base64

        text = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context.load_verify_locations(cadata=text)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        app = web.Application(client_max_size=16 << 20)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await proxy.handle(request, session, cluster["server"])

        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await over.wait()
        await runner.cleanup()
