"""Requests of kube-scheduler at this size: /filter with the names of all nodes, or with as many as
it looks at, and /bind of what was answered.

kube-scheduler stops looking for nodes when it has enough (`percentageOfNodesToScore`: 5 % of a
large cluster) and begins where it stopped, so the names are other ones for every pod. Whole Node
objects (`nodeCacheCapable: false`) are longer than an extender reads, ours and HAMi's alike.
"""

from __future__ import annotations

import http.client
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any

import orjson

from bench.filter.figures import percentile

CLIENTS = 8
SHARE = 20
"""kube-scheduler's own: one node in so many, in clusters of 5600 nodes and more."""
MIN_NODES = 100


class Extender:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: bytes) -> tuple[float, Any]:
        """Milliseconds until the answer was there, and the answer."""
        began_s = time.perf_counter()
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse().read()
        return (time.perf_counter() - began_s) * 1000, orjson.loads(answer)


def body(pod: bytes, names: bytes) -> bytes:
    """Return the body of /filter, as kube-scheduler writes it."""
    return b'{"pod":%b,"nodes":null,"nodenames":%b}' % (pod, names)


def windows(nodes: list[str], count: int) -> list[bytes]:
    """`count` lists of names as kube-scheduler looks at them, one after the other."""
    size = min(len(nodes), max(MIN_NODES, len(nodes) // SHARE))
    endless = cycle(nodes)
    return [orjson.dumps(list(islice(endless, size))) for _ in range(count)]


def filtered(port: int, pods: list[bytes], names: list[bytes]) -> tuple[list[float], list[str]]:
    """(milliseconds, the nodes that were chosen), one pod after the other."""
    extender = Extender(port)
    spent_ms, chosen = [], []
    for pod, offered in zip(pods, names, strict=True):
        took_ms, answer = extender.post("/filter", body(pod, offered))
        if len(answer["NodeNames"] or ()) != 1:
            raise SystemExit(f"unexpected answer: {str(answer)[:500]}")
        spent_ms.append(took_ms)
        chosen.append(str(answer["NodeNames"][0]))
    return spent_ms, chosen


def at_once(port: int, pods: list[bytes], names: list[bytes]) -> tuple[float, list[str]]:
    """(decisions per second of CLIENTS clients, the nodes that were chosen)."""
    parts = [range(first, len(pods), CLIENTS) for first in range(CLIENTS)]
    chosen = [""] * len(pods)

    def work(part: range) -> None:
        found = filtered(port, [pods[i] for i in part], [names[i] for i in part])[1]
        for i, node in zip(part, found, strict=True):
            chosen[i] = node

    with ThreadPoolExecutor(CLIENTS) as threads:
        began_s = time.perf_counter()
        list(threads.map(work, parts))
        return len(pods) / (time.perf_counter() - began_s), chosen


def bound(port: int, pods: list[bytes], nodes: list[str]) -> tuple[float, list[float]]:
    """(bindings per second of CLIENTS clients, milliseconds of each)."""

    def work(first: int) -> list[float]:
        extender, spent_ms = Extender(port), []
        for pod, node in list(zip(pods, nodes, strict=True))[first::CLIENTS]:
            about = orjson.loads(pod)["metadata"]
            asked = {
                "PodName": about["name"],
                "PodNamespace": about["namespace"],
                "PodUID": about["uid"],
                "Node": node,
            }
            took_ms, answer = extender.post("/bind", orjson.dumps(asked))
            if answer["Error"]:
                raise SystemExit(f"/bind: {answer['Error'][:500]}")
            spent_ms.append(took_ms)
        return spent_ms

    with ThreadPoolExecutor(CLIENTS) as threads:
        began_s = time.perf_counter()
        spent = [one for ones in threads.map(work, range(CLIENTS)) for one in ones]
        return len(pods) / (time.perf_counter() - began_s), spent


def summary(spent_ms: list[float]) -> dict[str, float]:
    """p50 and p99 in ms."""
    return {
        "p50_ms": round(statistics.median(spent_ms), 2),
        "p99_ms": round(percentile(spent_ms, 0.99), 2),
    }
