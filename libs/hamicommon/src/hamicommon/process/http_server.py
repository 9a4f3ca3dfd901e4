"""Serve HTTP in a service's own event loop with uvicorn, and shut down in order.

The socket is bound before anything else starts. So an address in use is reported in one clear
sentence, and the number for port 0 is known immediately. The bootstrap of each service opens its
resources and wraps them in `serving`; `__main__` passes it to `run`, which waits in
`until_stopped`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hamicommon.errors import HamiError
from hamicommon.process.listening_socket import listen
from hamicommon.process.shutdown import until_stopped

if TYPE_CHECKING:
    from starlette.types import ASGIApp

# Requests in flight at the end get this long; kube-scheduler's bind is the longest, see its 30 s.
GRACE_S = 10
# Maximum wait for a client's end of TLS, which an idle client that does not read never sends.
TLS_END_S = 1.0
# kube-scheduler and the API server keep connections for 90 s: we must not close them first.
KEEP_ALIVE_S = 120


class JoinedWrites:
    """Transport that sends all writes of one turn of the event loop by one system call.

    uvicorn writes an answer's head and then its body. Sent separately, each costs a system call, a
    packet and, on the other side, a reader that wakes up for half an answer.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write the data at the end of this turn of the event loop."""
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        """Close when all data is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Connection(HttpToolsProtocol):
    """HTTP connection whose response's head and body are sent together."""

    def connection_made(  # type: ignore[override]  # as uvicorn has it: a stream is a Transport
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport)))

    def shutdown(self) -> None:
        """End the connection: an idle one immediately, another after its answer."""
        super().shutdown()
        if self.transport.is_closing() and not self.flow.write_paused:
            asyncio.get_running_loop().call_later(TLS_END_S, self.transport.abort)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process handles signals, not a server.

    `end` wakes it; uvicorn's own loop checks ten times a second whether it should end.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        # A tick with 0 renews the Date header, whose unit is the second.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ending.wait()

    def end(self) -> None:
        """Stop the server when running requests are answered."""
        self.should_exit = True
        self._ending.set()


@asynccontextmanager
async def serving(
    app: ASGIApp, bind: str, *, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve `app` inside the block; yields the port. A server that dies ends the block."""
    sock = listen(bind)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=_Connection,
        server_header=False,
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if ssl_context is None else (lambda _config, _make: ssl_context),
    )
    server = _Server(config)
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        stack.callback(sock.close)
        group.create_task(server.serve(sockets=[sock]), name=f"serve-{bind}")
        try:
            yield int(sock.getsockname()[1])
        finally:
            server.end()


def run(name: str, app: AbstractAsyncContextManager[object]) -> None:
    """Run a service until a signal: open it, wait, close it.

    Raises: SystemExit with one sentence if it ends by a HamiError; other exceptions pass unchanged,
    with their traceback.
    """

    async def main() -> None:
        async with app:
            await until_stopped()

    try:
        asyncio.run(main())
    except (HamiError, ExceptionGroup) as exc:
        ours = _first(exc)
        if ours is None:
            raise
        raise SystemExit(f"{name}: {ours}") from None


def _first(exc: Exception) -> HamiError | None:
    """Return the first error in a tree of exception groups if all of them are HamiErrors."""
    if isinstance(exc, ExceptionGroup):
        found = [_first(child) for child in exc.exceptions]
        return found[0] if all(found) else None
    return exc if isinstance(exc, HamiError) else None
