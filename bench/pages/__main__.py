"""Cost of the operators' pages: 1000 nodes of 8 cards and 16,000 pods, the service as it runs.

The console script `hami-metrics` serves the pages over a durable Postgres whose data SQL made. Each
page is requested in turn, first once (imports and reads of that request are printed separately) and
then `--rounds` times. Prints milliseconds until the answer is complete, the service's processor
time for it, its size and its size on the wire, and the service's memory before and after all
requests; then the cost of `--viewers` open overviews while cards change (`--seconds 600` is the
whole run). Budgets are those of docs/pages.md. Writes bench/results/pages.json.

`--way questions` and `--way usage` measure the other costs of the metrics service's ledger
(questions.py, usage.py).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import statistics
import time
from typing import Any

import asyncpg
import httpx

from bench.figures import cpu_s, percentile, print_machine, resident_mb, write_results
from bench.pages import questions, usage
from bench.pages.service import service
from bench.pages.viewers import CORE_BUDGET_PERCENT, watch

CARDS = 8
PODS_PER_NODE = 16
WAITING = 40
WIRE_BUDGET_KB = 130.0
SERVER_BUDGET_MS = 50.0
"""Budget of the overview, once it has been read (design: snapshot in memory)."""
ASKED = (
    ("1000 slices", "/api/v1/questions/what-runs-where?limit=1000"),
    ("all slices", "/api/v1/questions/what-runs-where?limit=20000"),
    ("all cards", "/api/v1/questions/cards?limit=20000"),
)
"""Questions to the API: those of `hamictl get allocations` and `get devices`."""
MAX_ASKED = 5
TIMEOUT_S = 60.0
TRIES = 10
FIRST_READING_S = 180.0


async def _paths(dsn: str) -> dict[str, str]:
    """Each page that has something to show."""
    connection = await asyncpg.connect(dsn)
    try:
        card = await connection.fetchval("SELECT uuid FROM devices WHERE used_slots > 0 LIMIT 1")
        pod = await connection.fetchrow("SELECT namespace, pod_name FROM allocations LIMIT 1")
    finally:
        await connection.close()
    return {
        "overview": "/",
        "nodes": "/nodes",
        "pods": "/pods",
        "pods last": "/pods?sort=since&first=15900",
        "pods find": "/pods?q=infer",
        "node": "/nodes/n0001",
        "card": f"/cards/{card}",
        "pod": f"/pods/{pod['namespace']}/{pod['pod_name']}",
        "pending": "/pending",
        "history": "/history",
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Figures of each page, of the streams, and the process's memory."""
    nodes = args.nodes
    with (
        service(nodes, cards=CARDS, pods=nodes * PODS_PER_NODE, waiting=WAITING) as found,
        httpx.Client(base_url=found.url, timeout=TIMEOUT_S, follow_redirects=True) as http,
    ):
        before_mb = resident_mb(found.pid)
        _wait_for_a_reading(http)
        pages = {
            name: _page(http, found.pid, path, args.rounds)
            for name, path in asyncio.run(_paths(found.dsn)).items()
        }
        memory_mb = resident_mb(found.pid)
        with httpx.Client(base_url=found.api_url, timeout=TIMEOUT_S) as api:
            rounds = min(args.rounds, MAX_ASKED)
            asked = {name: _page(api, found.pid, path, rounds) for name, path in ASKED}
        questions_mb = resident_mb(found.pid)
        streams = None
        if args.viewers:
            how = {"viewers": args.viewers, "events_per_s": args.events, "away_s": args.away}
            streams = asyncio.run(watch(found, seconds=args.seconds, **how))
        return {
            "nodes": nodes,
            "cards": nodes * CARDS,
            "memory_before_mb": round(before_mb, 1),
            "memory_after_mb": round(memory_mb, 1),
            "pages": pages,
            "questions": asked,
            "memory_questions_mb": round(questions_mb, 1),
            "streams": streams,
        }


def _wait_for_a_reading(http: httpx.Client) -> None:
    """Wait until the overview is known.

    Beside other work the first readings of so many cards may time out. The overview is then shown
    as unknown, and its figures lack the imports of the first request.
    """
    deadline = time.monotonic() + FIRST_READING_S
    while (answer := http.get("/")).status_code == 503 and time.monotonic() < deadline:
        time.sleep(1.0)
    answer.raise_for_status()


def _page(http: httpx.Client, pid: int, path: str, rounds: int) -> dict[str, float]:
    first_ms, body = _get(http, path)
    before_s = cpu_s(pid)
    later = [_get(http, path)[0] for _ in range(rounds)]
    used_s = cpu_s(pid) - before_s
    return {
        "first_ms": round(first_ms, 1),
        "p50_ms": round(statistics.median(later), 1),
        "p99_ms": round(percentile(later, 0.99), 1),
        "cpu_ms": round(1000 * used_s / rounds, 1),
        "kb": round(len(body) / 1000, 1),
        "wire_kb": round(len(gzip.compress(body, 6)) / 1000, 1),
    }


def _get(http: httpx.Client, path: str) -> tuple[float, bytes]:
    for _ in range(TRIES):
        began_s = time.perf_counter()
        answer = http.get(path)
        # Beside other work a statement may meet its time-out: it is asked again.
        if answer.status_code != 503:
            break
    if answer.status_code != 200:
        raise SystemExit(f"{path}: {answer.status_code}: {answer.text[:300]}")
    return 1000 * (time.perf_counter() - began_s), answer.content


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(prog="make bench-pages", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--viewers", type=int, default=50, help="open overviews; 0: none")
    parser.add_argument("--events", type=int, default=200, help="cards that change per second")
    parser.add_argument(
        "--away", type=float, default=0.0, help="one more viewer leaves for so many seconds"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long they change")
    parser.add_argument("--way", choices=("pages", "questions", "usage"), default="pages")
    parser.add_argument("--allocations", type=int, default=1_000_000, help="of --way questions")
    parser.add_argument("--samples", type=int, default=10_000_000, help="of --way questions")
    parser.add_argument(
        "--reports", type=int, default=40, help="of each node, in each half of --way usage"
    )
    args = parser.parse_args()
    if args.way != "pages":
        {"questions": questions, "usage": usage}[args.way].run(args)
        return
    # First: a run of ten minutes shall not be had again for what its machine was.
    where = print_machine()
    found = {**measure(args), "machine": where}
    write_results("pages", found)
    columns = ("P50 ms", "P99 ms", "CPU ms", "kB", "WIRE kB")
    print(f"{'PAGE':12} {'FIRST ms':>9} " + " ".join(f"{name:>8}" for name in columns))
    for name, page in (*found["pages"].items(), *found["questions"].items()):
        print(
            f"{name:12} {page['first_ms']:9.1f} {page['p50_ms']:8.1f} {page['p99_ms']:8.1f} "
            f"{page['cpu_ms']:8.1f} "
            f"{page['kb']:8.1f} {page['wire_kb']:8.1f}"
        )
    print(
        f"{found['nodes']} nodes, {found['cards']} cards; budgets of the overview: "
        f"{SERVER_BUDGET_MS:g} ms, {WIRE_BUDGET_KB:g} kB on the wire; memory "
        f"{found['memory_before_mb']} MB before anybody looked, {found['memory_after_mb']} MB"
        f" after, {found['memory_questions_mb']} MB after the questions"
    )

    streams = found["streams"]
    if streams is not None:
        print(
            f"{streams['viewers']} viewers for {streams['seconds']} s at"
            f" {streams['events_per_s']} changes/s: {streams['core_percent']} % of a core (budget"
            f" {CORE_BUDGET_PERCENT:g}), {streams['messages_per_viewer']} messages and"
            f" {streams['mb_per_viewer']} MB each, {streams['resyncs']} pages loaded again, memory"
            f" {streams['memory_mb']} MB by tenths of the run;"
            " none missed a change"
            + (
                f"; one who was away for {args.away:g} s {streams['came_back']}"
                if args.away
                else ""
            )
        )


if __name__ == "__main__":
    main()
