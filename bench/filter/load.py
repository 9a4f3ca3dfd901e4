"""The callers: pods that exist at the API server, asked for over kept connections.

A connection is kube-scheduler's: HTTP/1.1, kept alive, one request at a time, the pod as its cache
has it (no managed fields) and the names of all nodes, or of those that it looks at in a large
cluster (`percentageOfNodesToScore`: 5 %, other ones for every pod).
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

import asyncpg
import orjson
from hamicommon.k8s.client import open_kube_api

from bench.filter.objects import pod_object
from bench.filter.system import Bench

CLIENTS = 8
SHARE = 20
"""kube-scheduler's own: one node in so many, in clusters of 5600 nodes and more."""
MIN_NODES = 100
WARM_UP = 50
# Of the new pods: less than the placed ones, so that no card is ever full.
NEW_MEMORY_MIB = 2048
NEW_CORE_PERCENT = 5
PHASES = ("parse", "place", "answer")


class Client:
    """One kept connection."""

    def __init__(self, bench: Bench) -> None:
        self._socket = socket.create_connection(("127.0.0.1", bench.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._names = orjson.dumps(bench.nodes)

    def filter(self, pod: bytes, names: bytes | None = None) -> float:
        """Ask for one pod, which fits; return the milliseconds until the answer arrived."""
        body = b'{"pod":%b,"nodes":null,"nodenames":%b}' % (pod, names or self._names)
        head = (
            "POST /filter HTTP/1.1\r\nHost: hami-scheduler\r\nUser-Agent: Go-http-client/1.1\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
            "Accept-Encoding: gzip\r\n\r\n"
        )
        request = head.encode() + body
        started = time.perf_counter()
        self._socket.sendall(request)
        data = self._read()
        spent_ms = (time.perf_counter() - started) * 1000
        answer = orjson.loads(data)
        if len(answer["NodeNames"] or ()) != 1:
            raise SystemExit(f"unexpected answer: {str(answer)[:500]}")
        return spent_ms

    def _read(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        [length] = [
            int(line.partition(b":")[2])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        while len(body) < length:
            body += self._more()
        return body

    def _more(self) -> bytes:
        data = self._socket.recv(262_144)
        if not data:
            raise SystemExit("the scheduler closed the connection")
        return data


def new_pods(bench: Bench, count: int, *, prefix: str = "new") -> list[bytes]:
    """Create pods at the API server; each as kube-scheduler would send it."""

    async def create() -> list[bytes]:
        async with open_kube_api(bench.kubeconfig) as api:
            gate = asyncio.Semaphore(16)

            async def one(number: int) -> bytes:
                pod = pod_object(
                    f"{prefix}-{number}", memory_mib=NEW_MEMORY_MIB, core_percent=NEW_CORE_PERCENT
                )
                del pod["metadata"]["uid"], pod["status"]
                async with gate:
                    made = await api.create("/api/v1/namespaces/default/pods", pod)
                made["metadata"].pop("managedFields", None)
                return orjson.dumps({key: made[key] for key in ("metadata", "spec", "status")})

            return await asyncio.gather(*(one(number) for number in range(count)))

    return asyncio.run(create())


def one_after_the_other(bench: Bench, pods: list[bytes]) -> list[float]:
    """Latencies in ms of one client."""
    client = Client(bench)
    return [client.filter(pod) for pod in pods]


def looking_at_some(bench: Bench, pods: list[bytes]) -> list[float]:
    """The same, each pod with the names of the next nodes that kube-scheduler looks at."""
    client, endless = Client(bench), cycle(bench.nodes)
    size = min(len(bench.nodes), max(MIN_NODES, len(bench.nodes) // SHARE))
    return [client.filter(pod, orjson.dumps(list(islice(endless, size)))) for pod in pods]


def all_at_once(bench: Bench, pods: list[bytes]) -> tuple[float, list[float]]:
    """(decisions per second, latencies in ms) of CLIENTS clients.

    Raises: SystemExit, with the error of the first client that gave up.
    """
    clients = [Client(bench) for _ in range(CLIENTS)]

    def work(number: int) -> list[float]:
        return [clients[number].filter(pod) for pod in pods[number::CLIENTS]]

    with ThreadPoolExecutor(CLIENTS) as threads:
        started = time.perf_counter()
        spent = [one for ones in threads.map(work, range(CLIENTS)) for one in ones]
        return len(pods) / (time.perf_counter() - started), spent


def phases_ms(bench: Bench, pods: list[bytes]) -> dict[str, float]:
    """Median of each phase of these pods' decisions, as the scheduler recorded them.

    Raises: SystemExit when a decision was not recorded, or an event is missing: then the figures
    are of something that does less than it should.
    """
    uids = [orjson.loads(pod)["metadata"]["uid"] for pod in pods]
    rows = asyncio.run(_decisions(bench.servers.dsn, uids))
    if len(rows) != len(uids):
        raise SystemExit(f"{len(rows)} decisions recorded of {len(uids)}")
    return {
        phase: round(statistics.median(row[phase] for row in rows), 3)
        for phase in (*PHASES, "total")
    }


async def _decisions(dsn: str, uids: list[str]) -> list[dict[str, float]]:
    connection: Any = await asyncpg.connect(dsn)
    try:
        rows = []
        for _ in range(100):
            rows = await connection.fetch(
                "SELECT phase_ms::text FROM decisions WHERE pod_uid = ANY($1)", uids
            )
            waiting = await connection.fetchval(
                "SELECT count(*) FROM allocation_events WHERE published_at IS NULL"
            )
            if len(rows) == len(uids) and not waiting:
                break
            await asyncio.sleep(0.1)
        else:
            raise SystemExit(f"{waiting} facts are still not announced")
        return [orjson.loads(row["phase_ms"]) for row in rows]
    finally:
        await connection.close()
