"""The questions of docs/sql.md on a full ledger: 10 million usage rows, 1 million allocations.

Fills a durable Postgres with its default settings by COPY at the schema of the version before,
migrates it while writers go on (`pre`, then `post`), sums months up, asks every question of
docs/sql.md as `hami_reader` (alone, then beside the writers), asks whether the promises hold, and
drops old days while the writers go on. Prints tables and writes bench/results/sql.json; fails when
a question takes longer than its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from hami_metrics.adapters.capacity import sum_up_capacity
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_scheduler.adapters.postgres.decisions import PostgresDecisionLog
from hamicommon.ledger.database import open_database
from hamicommon.ledger.invariants import INVARIANTS
from hamicommon.ledger.migrations import upgrade
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings

from bench.filter.figures import fdatasync_ms, machine
from bench.sql.auditing import fill_audit
from bench.sql.ledger import DAYS, FILLED_AT, MIGRATIONS, ledger, server
from bench.sql.questions import questions
from bench.sql.report import report
from bench.sql.writers import writing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "sql.json"
BUDGET_MS = 200.0
RUNS = 7
QUIET_S = 5.0
"""Writers alone, to compare with."""
KEEP_RAW_DAYS = 3
KEEP_DECISION_DAYS = 7
_SIZE = "SELECT pg_size_pretty(pg_database_size(current_database()))"
_TABLES = (
    "allocations",
    "allocation_devices",
    "allocation_events",
    "decisions",
    "usage_samples",
    "usage_rollups",
    "namespace_rollups",
)

T = TypeVar("T")
Row = dict[str, Any]


async def timed(work: Awaitable[T]) -> tuple[float, T]:
    """(seconds, what it returned)."""
    started = time.perf_counter()
    result = await work
    return round(time.perf_counter() - started, 2), result


async def beside_writers(settings: PostgresSettings, work: Callable[[], Awaitable[object]]) -> Row:
    """How long it took, and what the writers saw in that time."""
    async with writing(settings) as times:
        await asyncio.sleep(0.5)
        took_s, _ = await timed(work())
        await asyncio.sleep(0.5)
    return {"seconds": took_s, **times.row()}


async def migrated(settings: PostgresSettings) -> dict[str, Row]:
    """`pre` and `post` on the full ledger, beside writers."""

    def to(revision: str) -> Callable[[], Awaitable[None]]:
        return lambda: asyncio.to_thread(upgrade.upgrade, settings, MIGRATIONS, revision)

    pre = upgrade.before_rollout(MIGRATIONS, [FILLED_AT])
    return {
        "writers alone": await beside_writers(settings, lambda: asyncio.sleep(QUIET_S)),
        "migrations, pre": await beside_writers(settings, to(pre)),
        "migrations, post": await beside_writers(settings, to(upgrade.HEADS)),
        "writers alone, after": await beside_writers(settings, lambda: asyncio.sleep(QUIET_S)),
    }


def cpu_ms(pid: int) -> float:
    """CPU time of a server process so far; on a busy machine it shows more than the clock."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


async def asked(connection: asyncpg.Connection, runs: int) -> dict[str, Row]:
    """Every question, planned again each time; `max_ms` is the worst of all runs."""
    answers: dict[str, Row] = {}
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    for title, query in questions().items():
        times, spent = [], []
        for _ in range(runs):
            started, used = time.perf_counter(), cpu_ms(pid)
            rows = await connection.fetch(query)
            times.append((time.perf_counter() - started) * 1000)
            spent.append(cpu_ms(pid) - used)
        answers[title] = {
            "rows": len(rows),
            "first_ms": round(times[0], 1),
            "median_ms": round(statistics.median(times), 1),
            "max_ms": round(max(times), 1),
            "cpu_ms": round(statistics.median(spent), 1),
        }
    return answers


async def asked_as_reader(settings: PostgresSettings, runs: int) -> dict[str, Row]:
    """Ask as a dashboard does: on another connection, in the read-only role."""
    connection = await asyncpg.connect(settings.dsn.get_secret_value(), statement_cache_size=0)
    try:
        await connection.execute("SET ROLE hami_reader")
        return await asked(connection, runs)
    finally:
        await connection.close()


async def promises(connection: asyncpg.Connection) -> Row:
    """Seconds of each, over the whole ledger."""
    found: Row = {}
    for promise, query in INVARIANTS.items():
        found[promise], rows = await timed(connection.fetch(query))
        if rows:
            raise SystemExit(f"{promise}; but {rows[0][0]}")
    return found


async def retention(settings: PostgresSettings) -> Row:
    """Drops the old days of samples and of decisions beside writers."""

    async def keep() -> None:
        today = datetime.now(UTC).date()
        async with (
            open_pool(settings, "bench") as pool,
            open_database(settings, application="bench") as database,
        ):
            await PostgresUsageStore(pool).keep_samples(today, KEEP_RAW_DAYS)
            await PostgresDecisionLog(database).tidy(keep_days=KEEP_DECISION_DAYS)

    return await beside_writers(settings, keep)


async def measure(settings: PostgresSettings) -> Row:
    """Everything after the filling, in the order of the docstring."""
    beside = await migrated(settings)
    connection = await asyncpg.connect(settings.dsn.get_secret_value(), timeout=30)
    await fill_audit(connection, days=DAYS)
    capacity_s, capacity_hours = await timed(sum_up_capacity(connection, datetime.now(UTC)))
    capacity_again_s, _ = await timed(sum_up_capacity(connection, datetime.now(UTC)))
    first_s, hours = await timed(sum_up_namespaces(connection, datetime.now(UTC)))
    again_s, _ = await timed(sum_up_namespaces(connection, datetime.now(UTC)))
    await connection.execute("VACUUM (ANALYZE) namespace_rollups")
    rows = {table: await connection.fetchval(f"SELECT count(*) FROM {table}") for table in _TABLES}
    size = await connection.fetchval(_SIZE)
    alone = await asked_as_reader(settings, RUNS)
    async with writing(settings) as times:
        loaded = await asked_as_reader(settings, RUNS)
    beside["questions"] = times.row()
    held = await promises(connection)
    before = rows["usage_samples"]
    beside["retention"] = await retention(settings)
    left = await connection.fetchval("SELECT count(*) FROM usage_samples")
    await connection.close()
    return {
        "rows": rows,
        "size": size,
        "sums_of_capacity": {
            "hours": capacity_hours,
            "first_s": capacity_s,
            "again_s": capacity_again_s,
        },
        "sums_of_namespaces": {"hours": hours, "first_s": first_s, "again_s": again_s},
        "questions": alone,
        "questions_beside_writers": loaded,
        "writers_beside": beside,
        "promises_s": held,
        "retention": {"samples_before": before, "samples_left": left},
    }


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocations", type=int, default=1_000_000)
    parser.add_argument("--usage", type=int, default=10_000_000)
    parser.add_argument(
        "--keep", type=Path, help="folder for the filled ledger; later runs start from a copy of it"
    )
    arguments = parser.parse_args()
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    with tempfile.TemporaryDirectory(prefix="hami-bench-", dir=arguments.keep) as name:
        folder = Path(name)
        folder.chmod(0o755)
        where["fdatasync_ms"] = round(fdatasync_ms(folder), 3)
        took = ledger(folder / "postgres", arguments)
        with server(folder / "postgres") as settings:
            result = {"filled_s": took, **asyncio.run(measure(settings))}
    slow = report(result, BUDGET_MS)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": where, **result}, indent=2) + "\n")
    if slow:
        raise SystemExit(f"slower than {BUDGET_MS:.0f} ms: {'; '.join(slow)}")


if __name__ == "__main__":
    main()
