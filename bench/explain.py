"""Cost of explaining: pods that wait, tried again and again, on a real scheduler process.

200 pods that fit nowhere on 1000 nodes are tried again in turn by clients that play kube-scheduler,
for `--seconds`; in that time small pods are placed, so that the cards change. The stack is that of
bench/filter: durable Postgres, decision records, outbox, traces and pod events. Prints how many
bytes of Postgres a decision takes with its index and the cards that it was made on, how many
records were lost (must be 0), and whether /filter at the end is as quick as at the start. Writes
bench/results/explain.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from bench.filter.cluster import Fill
from bench.filter.figures import machine, percentile, resident_mb
from bench.filter.load import Client, new_pods
from bench.filter.system import Bench, system, wait_until_quiet

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "explain.json"
FILL = Fill(title="as HAMi", pods_per_node=16, memory_mib=4096, core_percent=10)
CLIENTS = 4
WAITING_MIB = 80_000
"""More than any card has free, though not more than a card has."""
RETRIES_PER_S = 40.0
"""All pods together: each is tried again every five seconds, as often as a busy cluster does."""
PLACED_PER_S = 2.0
EDGE = 0.15
"""The first and the last share of the run are compared."""
DRAIN_S = 30.0
DROPPED = "hami_scheduler_decisions_dropped_total"
WITHOUT_CARDS = "hami_scheduler_decisions_without_cards_total"
WAITING = "hami_scheduler_decisions_waiting"

_BYTES = """
SELECT (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'decisions'::regclass) AS decisions,
       pg_total_relation_size('decision_snapshots') AS snapshots
"""
_ROWS = """
SELECT count(*) AS rows, coalesce(sum(repeat_count), 0) AS decisions,
       coalesce(avg(pg_column_size(d.*)), 0) AS row_bytes
  FROM decisions d WHERE outcome = 'refused'
"""


@dataclass
class Tries:
    """Measurements of the clients: (when, milliseconds) per refusal."""

    spent: list[tuple[float, float]] = field(default_factory=list)
    placed: int = 0


def try_again(
    bench: Bench, pods: Iterator[bytes], until: float, every_s: float, tries: Tries
) -> None:
    """One client: the next pod of the row, at its rate."""
    client = Client(bench)
    due = time.perf_counter()
    while (now := time.perf_counter()) < until:
        if now < due:
            time.sleep(due - now)
        due = max(due + every_s, time.perf_counter() - 1)
        started = time.perf_counter()
        spent_ms, answer = client.ask(next(pods))
        if answer["NodeNames"] or answer["Error"]:
            raise SystemExit(f"unexpected answer: {str(answer)[:500]}")
        tries.spent.append((started, spent_ms))


def place_now_and_then(bench: Bench, pods: list[bytes], until: float, tries: Tries) -> None:
    """Places small pods, so that refusals are made on cards that change."""
    client = Client(bench)
    for pod in pods:
        if time.perf_counter() >= until:
            return
        client.filter(pod)
        tries.placed += 1
        time.sleep(1 / PLACED_PER_S)


def gauges(bench: Bench) -> dict[str, float]:
    """The scheduler's own figures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{bench.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def ask(dsn: str, query: str) -> dict[str, Any]:
    """One row."""
    connection = await asyncpg.connect(dsn)
    try:
        return dict(await connection.fetchrow(query))
    finally:
        await connection.close()


def wait_until_written(bench: Bench) -> None:
    """Lets the queue empty itself."""
    deadline = time.monotonic() + DRAIN_S
    while gauges(bench)[WAITING] and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)


def run(bench: Bench, pods: int, seconds: float) -> dict[str, Any]:
    """The whole measurement."""
    bodies = new_pods(bench, pods, memory_mib=WAITING_MIB, prefix="waits")
    small = new_pods(bench, math.ceil(seconds * PLACED_PER_S))
    wait_until_quiet(bench.pid)
    rows = [itertools.cycle(bodies[client::CLIENTS]) for client in range(CLIENTS)]
    tries, before = Tries(), asyncio.run(ask(bench.dsn, _BYTES))
    resident = resident_mb(bench.pid)
    started = time.perf_counter()
    until, every_s = started + seconds, CLIENTS / RETRIES_PER_S
    threads = [
        threading.Thread(target=try_again, args=(bench, row, until, every_s, tries)) for row in rows
    ]
    threads.append(threading.Thread(target=place_now_and_then, args=(bench, small, until, tries)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until_written(bench)
    after, counted = (asyncio.run(ask(bench.dsn, query)) for query in (_BYTES, _ROWS))
    found = gauges(bench)
    first = [ms for at, ms in tries.spent if at < started + EDGE * seconds]
    last = [ms for at, ms in tries.spent if at > until - EDGE * seconds]
    all_bytes = int(sum(after.values()) - sum(before.values()))
    return {
        "seconds": seconds,
        "refusals": len(tries.spent),
        "placed_in_that_time": tries.placed,
        "rows": int(counted["rows"]),
        "bytes_per_row": round(float(counted["row_bytes"])),
        "bytes_per_decision": round(all_bytes / max(1, len(tries.spent) + tries.placed)),
        "decisions_bytes": int(after["decisions"] - before["decisions"]),
        "snapshots_bytes": int(after["snapshots"] - before["snapshots"]),
        "lost": len(tries.spent) - int(counted["decisions"]) + int(found[DROPPED]),
        "without_cards": int(found[WITHOUT_CARDS]),
        "first_p50_ms": round(statistics.median(first), 2),
        "last_p50_ms": round(statistics.median(last), 2),
        "first_p99_ms": round(percentile(first, 0.99), 2),
        "last_p99_ms": round(percentile(last, 0.99), 2),
        "p50_ratio": round(statistics.median(last) / statistics.median(first), 2),
        "resident_mb": [round(resident), round(resident_mb(bench.pid))],
    }


def main() -> None:
    """Measures, prints the table and writes the results; fails when a record was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="600 for the long form")
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args()
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    with system(arguments.nodes, FILL) as bench:
        result = run(bench, arguments.pods, arguments.seconds)
    result = {"nodes": arguments.nodes, "pods": arguments.pods, **result}
    for name, value in result.items():
        print(f"{name:>20}  {value}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, **result}, indent=2) + "\n")
    if result["lost"]:
        raise SystemExit(f"{result['lost']} records were lost")


if __name__ == "__main__":
    main()
