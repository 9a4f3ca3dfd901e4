"""Every question on a large ledger: the SQL of docs/sql.md, and the named ones.

`make bench-pages ARGS="--way questions"`: fills a durable Postgres with its default settings by
COPY (a million grants and ten million samples of 60 days), sums up as the service does, and asks
each question as `hami_reader`, planned again each time. Prints rows and times of each, writes
bench/results/questions.json, and fails when a question takes longer than its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
from hami_metrics.adapters.capacity import sum_up_capacity, sum_up_showback
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hamicommon.ledger.questions import answer
from hamicommon.ledger.questions import questions as named_questions

from bench.figures import ROOT, print_machine, write_results
from bench.pages.auditing import fill_audit
from bench.pages.filler import fill
from bench.servers import data_servers, temporary_folder

DOCUMENT = ROOT / "docs" / "sql.md"
DAYS = 60.0
SQL_BUDGET_MS, NAMED_BUDGET_MS = 200.0, 1000.0
RUNS = 5
_SIZE = "SELECT pg_size_pretty(pg_database_size(current_database()))"
_SUMS: tuple[Callable[..., Awaitable[object]], ...] = (
    sum_up_namespaces,
    sum_up_capacity,
    sum_up_showback,
)
_BLOCK = re.compile(
    r"^### (?P<title>.+?)$(?P<before>(?:(?!^#).)*?)^```sql\n(?P<sql>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
Row = dict[str, Any]
Ask = Callable[[], Awaitable[int]]
"""Asks one question; returns the number of rows."""


def sql_questions(document: Path = DOCUMENT) -> dict[str, str]:
    """Title -> query of every ```sql block under a `###` heading, in the order of the document."""
    return {found["title"]: found["sql"] for found in _BLOCK.finditer(document.read_text())}


async def _fill(connection: asyncpg.Connection, allocations: int, samples: int) -> None:
    until = datetime.now(UTC)
    await fill(
        connection,
        allocations=allocations,
        usage=samples,
        days=DAYS,
        until=until,
        report=lambda text: print(f"  {text}", flush=True),
    )
    await fill_audit(connection, days=DAYS)
    for work in _SUMS:
        began = time.perf_counter()
        await work(connection, until)
        print(f"  {work.__name__}: {time.perf_counter() - began:.1f} s", flush=True)
    await connection.execute("VACUUM (ANALYZE)", timeout=600)


async def _examples(connection: asyncpg.Connection) -> Row:
    """A card with many holders, a pod of the last days, and one that waits."""
    pod = await connection.fetchrow(
        "SELECT a.pod_uid, a.namespace FROM allocations a JOIN decisions d"
        " ON d.allocation_id = a.id WHERE a.ended_at IS NULL ORDER BY a.reserved_at LIMIT 1"
    )
    return {
        "card": await connection.fetchval("SELECT max(uuid) FROM devices"),
        "pod_uid": pod["pod_uid"],
        "waiting": await connection.fetchval(
            "SELECT pod_uid FROM decisions WHERE outcome = 'refused' ORDER BY at DESC LIMIT 1"
        ),
        "node": "node-000",
        "namespace": pod["namespace"],
        "memory": "8Gi",
        "cores": "30%",
    }


def _parameters(name: str, about: Row) -> Row:
    """Parameters that the named question must have, or that make it one."""
    asked = named_questions()[name]
    names = {parameter.name for parameter in asked.parameters}
    given: Row = {key: about[key] for key in ("memory", "cores") if key in names}
    wanted = {each.name for each in asked.parameters if each.required}
    given |= {key: about[key] for key in ("node", "namespace") if key in wanted}
    if frozenset({"pod_uid"}) in asked.needs:
        given["pod_uid"] = about["waiting" if name == "why-waiting" else "pod_uid"]
    if frozenset({"card"}) in asked.needs:
        given |= {"card": about["card"], "since": "-30d"}
    return given


def _questions(connection: asyncpg.Connection, about: Row) -> Iterator[tuple[str, float, Ask]]:
    """Name, budget, and what asks."""

    async def ask_sql(query: str) -> int:
        return len(await connection.fetch(query))

    async def ask_named(name: str, given: Row) -> int:
        return len((await answer(connection, name, given)).rows)

    for title, query in sql_questions().items():
        yield title, SQL_BUDGET_MS, partial(ask_sql, query)
    for name in named_questions():
        yield name, NAMED_BUDGET_MS, partial(ask_named, name, _parameters(name, about))


async def _time_questions(dsn: str) -> list[Row]:
    """Ask as a dashboard does: on another connection, in the read-only role."""
    connection = await asyncpg.connect(dsn, statement_cache_size=0)
    found: list[Row] = []
    try:
        await connection.execute("SET ROLE hami_reader")
        for name, budget_ms, ask in _questions(connection, await _examples(connection)):
            times_ms, rows = [], 0
            for _ in range(RUNS):
                began = time.perf_counter()
                rows = await ask()
                times_ms.append((time.perf_counter() - began) * 1000)
            row: Row = {
                "question": name,
                "rows": rows,
                "first_ms": round(times_ms[0], 1),
                "median_ms": round(statistics.median(times_ms), 1),
                "budget_ms": budget_ms,
            }
            found.append(row)
            print(
                "{question:<52.51} {rows:>6} rows {first_ms:>8} ms at first, {median_ms:>7} ms"
                " (budget {budget_ms:g})".format(**row),
                flush=True,
            )
    finally:
        await connection.close()
    return found


async def _measure(dsn: str, allocations: int, samples: int) -> Row:
    connection = await asyncpg.connect(dsn, timeout=30, command_timeout=1200)
    try:
        await _fill(connection, allocations, samples)
        size = await connection.fetchval(_SIZE)
    finally:
        await connection.close()
    print(f"{size}; {allocations:,} allocations, {samples:,} samples")
    return {"size": size, "questions": await _time_questions(dsn)}


def run(args: argparse.Namespace) -> None:
    """Fill, ask and print. Raises: SystemExit if a question is slow."""
    where = print_machine()
    with temporary_folder() as folder, data_servers(folder) as servers:
        found = asyncio.run(_measure(servers.dsn, args.allocations, args.samples))
    write_results("questions", {"machine": where, **found})
    slow = [row["question"] for row in found["questions"] if row["median_ms"] > row["budget_ms"]]
    if slow:
        raise SystemExit(f"slower than their budgets: {'; '.join(slow)}")
