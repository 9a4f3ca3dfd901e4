"""kube-scheduler's side of the extender, many times over: kept connections through a Service.

A `Service` does what kube-proxy does: a new connection goes to any replica that listens, and an
open one stays with its replica until it breaks. A `Caller` asks for one pod after the other and
continues over a new connection when its own breaks; the time that this costs counts as the pod's.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
from hamicommon.k8s.types import Json

CALL_TIMEOUT_S = 30.0
"""The httpTimeout of our kube-scheduler configuration."""


class Service:
    """The replicas' ports behind one name; `lost` ones are still in it, as in a real one."""

    def __init__(self, ports: Sequence[int], *, seed: int) -> None:
        self._ports = list(ports)
        self._chance = random.Random(seed)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to any replica that takes it."""
        for port in self._chance.sample(self._ports, len(self._ports)):
            try:
                return await asyncio.open_connection("127.0.0.1", port, limit=2**22)
            except OSError:
                continue
        raise ConnectionError("no replica listens")


@dataclass(slots=True)
class Caller:
    """One caller with one connection, one request at a time."""

    service: Service
    broken: int = 0
    """Calls whose connection broke before the answer came."""
    spent_s: list[tuple[float, float]] = field(default_factory=list)
    """(when the call was made, seconds until its answer), of each /filter."""
    _stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        """Ask for the pod's node."""
        called_s = time.monotonic()
        answer = await self._call("/filter", {"pod": pod, "nodes": None, "nodenames": nodes})
        self.spent_s.append((called_s, time.monotonic() - called_s))
        return answer

    async def bind(self, pod: Json, node: str) -> str:
        """Bind the pod; return the error, or nothing."""
        metadata = pod["metadata"]
        body = {
            "podName": metadata["name"],
            "podNamespace": metadata["namespace"],
            "podUID": metadata["uid"],
            "node": node,
        }
        return str((await self._call("/bind", body))["Error"])

    async def _call(self, path: str, body: Json) -> Json:
        data = orjson.dumps(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: hami-scheduler\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        while True:
            try:
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    if self._stream is None:
                        self._stream = await self.service.connect()
                    reader, writer = self._stream
                    writer.write(head.encode() + data)
                    return dict(orjson.loads(await _body(reader)))
            except (OSError, asyncio.IncompleteReadError):
                self.broken += 1
                self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


@contextmanager
def calling(service: Service, count: int) -> Iterator[list[Caller]]:
    """Open this number of callers; their connections end with the block."""
    callers = [Caller(service) for _ in range(count)]
    try:
        yield callers
    finally:
        for caller in callers:
            caller.close()


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    [length] = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    return await reader.readexactly(length)
