"""Connections that ask one thing after the other, and what came of a round of them."""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.webhook.reviews import NextRequest, replica
from bench.webhook.servers import Server

ROTATE_EVERY_S = 1.0


@dataclass(slots=True)
class Load:
    """Result of one round."""

    latencies_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    took_s: float = 0.0
    server_cpu_s: float = 0.0
    """CPU time of the webhook's process in that time."""

    def cpu_us(self) -> float:
        """CPU time of the server per answer."""
        return 1e6 * self.server_cpu_s / len(self.latencies_s)

    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies_s) / self.took_s

    def quantile_ms(self, share: float) -> float:
        """The latency that `share` of the answers kept to."""
        ordered = sorted(self.latencies_s) or [math.nan]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Connection:
    """One keep-alive connection that asks one thing at a time."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        self._port, self._trust = port, trust
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer. Raises: OSError, TimeoutError, or ValueError for no 200."""
        async with asyncio.timeout(10):
            if self._streams is None:
                self._streams = await asyncio.open_connection(
                    "127.0.0.1", self._port, ssl=self._trust, server_hostname="localhost"
                )
            reader, writer = self._streams
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise ValueError(head.decode())
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            return await reader.readexactly(length)

    async def close(self) -> None:
        """Leaves; a connection that is gone already is no matter."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def ask_for(
    seconds: float, load: Load, request: NextRequest, connection: Connection, *, renew: bool
) -> None:
    """Asks one thing after the other; `renew`: on a new connection each."""
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        try:
            body = await connection.ask(request())
            if b'"allowed":false' in body:
                raise ValueError(body.decode())
            load.latencies_s.append(time.perf_counter() - began_s)
        except (OSError, EOFError, ValueError, TimeoutError) as exc:
            load.failures.append(f"{type(exc).__name__}: {exc}")
            await connection.close()
        if renew:
            await connection.close()
    await connection.close()


async def round_of(
    seconds: float,
    request: NextRequest,
    server: Server,
    trust: ssl.SSLContext,
    connections: int,
) -> Load:
    """One round on connections that are kept."""
    load, began_s, cpu_s, port = Load(), time.perf_counter(), server.cpu_s(), server.port
    await asyncio.gather(
        *(
            ask_for(seconds, load, request, Connection(port, trust), renew=False)
            for _ in range(connections)
        )
    )
    load.took_s = time.perf_counter() - began_s
    load.server_cpu_s = server.cpu_s() - cpu_s
    return load


async def rotated(
    seconds: float,
    port: int,
    trust: ssl.SSLContext,
    connections: int,
    rotate: Callable[[], None],
) -> tuple[Load, int]:
    """Load while the certificate changes; every second connection is a new one each time."""
    load, rotations = Load(), 0
    began_s = time.perf_counter()
    asking = asyncio.gather(
        *(
            ask_for(seconds, load, replica, Connection(port, trust), renew=bool(number % 2))
            for number in range(connections)
        )
    )
    while not asking.done():
        await asyncio.wait([asking], timeout=ROTATE_EVERY_S)
        if not asking.done():
            rotate()
            rotations += 1
    await asking
    load.took_s = time.perf_counter() - began_s
    return load, rotations


async def until_ready(port: int, request: bytes, trust: ssl.SSLContext) -> None:
    """Asks until the starting process answers. Raises: TimeoutError."""
    async with asyncio.timeout(60):
        while True:
            connection = Connection(port, trust)
            try:
                await connection.ask(request)
                return
            except OSError:
                await asyncio.sleep(0.1)
            finally:
                await connection.close()
