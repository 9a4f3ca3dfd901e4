"""Every named question on a month of history: a million allocations, ten million samples.

Fills a Postgres with its default settings at the revision before grants had owners, brings it up
one migration after the other beside a writer that looks how long it is kept waiting, sums up as
the service does, and asks each question as `hami_reader`. Prints the first row and the time of
each, writes bench/results/questions.json, and fails when one takes longer than a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
from hami_metrics.adapters.capacity import sum_up_capacity, sum_up_showback
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hamicommon.errors import HamiError
from hamicommon.ledger.migrations import upgrade
from hamicommon.ledger.questions import Answer, answer, questions
from hamicommon.settings import PostgresSettings
from hamilocal.servers.data import postgres
from pydantic import SecretStr

from bench.filter.figures import machine
from bench.questions import month
from bench.sql.__main__ import cpu_ms
from bench.sql.auditing import fill_audit
from tests.processes import running

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = ROOT / "migrations"
RESULTS = ROOT / "bench" / "results" / "questions.json"
FILLED_AT = "0019"
THEN = tuple(f"{number:04}" for number in range(20, 38))
OWNED = (
    "UPDATE usage_rollups SET owner_name = '' WHERE bucket_s = 3600 AND pod_uid <> ''"
    " AND bucket_start > now() - interval '8 days'"
)
"""SQL that leaves hours as a week after 0026; the month's pods have no owners."""
BUDGET_MS = 1000.0
RUNS = 3
Row = dict[str, Any]


async def probed(settings: PostgresSettings, revision: str) -> Row:
    """One migration, and the longest that a grant's own statement waited in that time."""
    dsn = settings.dsn.get_secret_value()
    connection = await asyncpg.connect(dsn, timeout=30)
    waits_ms: list[float] = []
    ended = asyncio.Event()

    async def write() -> None:
        node, number = "node-000", 0
        while not ended.is_set():
            number += 1
            began = time.perf_counter()
            await connection.execute(
                "UPDATE allocations SET reason = $2 WHERE id ="
                " (SELECT id FROM allocations WHERE node = $1 AND ended_at IS NULL LIMIT 1)",
                node,
                str(number),
            )
            await connection.execute(
                "UPDATE devices SET version = version + 1 WHERE node = $1 AND index = 0", node
            )
            waits_ms.append((time.perf_counter() - began) * 1000)

    writer = asyncio.create_task(write())
    try:
        await asyncio.sleep(1)
        alone, began = len(waits_ms), time.perf_counter()
        await asyncio.to_thread(upgrade.upgrade, settings, MIGRATIONS, revision)
        took_s = time.perf_counter() - began
        ended.set()
        await writer
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        await connection.close()
    return {
        "revision": revision,
        "seconds": round(took_s, 2),
        "writes": len(waits_ms) - alone,
        "longest_wait_ms": round(max(waits_ms[alone:], default=0.0), 1),
        "longest_alone_ms": round(max(waits_ms[:alone], default=0.0), 1),
    }


async def prepared(settings: PostgresSettings, arguments: argparse.Namespace) -> Row:
    """The month, the migrations, the sums."""
    await asyncio.to_thread(upgrade.upgrade, settings, MIGRATIONS, FILLED_AT)
    until = datetime.now(UTC)
    connection = await asyncpg.connect(settings.dsn.get_secret_value(), timeout=30)
    try:
        await month.fill(
            connection,
            allocations=arguments.allocations,
            samples=arguments.samples,
            until=until,
            report=lambda text: print(f"  {text}", flush=True),
        )
        migrations = []
        for revision in THEN:
            migrations.append(await probed(settings, revision))
            print(
                "  {revision}: {seconds} s, longest wait {longest_wait_ms} ms of {writes}"
                " writes ({longest_alone_ms} ms before it)".format(**migrations[-1]),
                flush=True,
            )
        began = time.perf_counter()
        await connection.execute(OWNED, timeout=1200)
        print(f"  owners of a week: {time.perf_counter() - began:.1f} s", flush=True)
        await fill_audit(connection, days=month.DAYS)
        sums = {}
        for what, work in (
            ("namespaces", sum_up_namespaces),
            ("capacity", sum_up_capacity),
            ("showback", sum_up_showback),
        ):
            began = time.perf_counter()
            hours = await work(connection, until)
            sums[what] = {"hours": hours, "seconds": round(time.perf_counter() - began, 1)}
            print(f"  sums of {what}: {sums[what]}", flush=True)
        await connection.execute("VACUUM (ANALYZE)", timeout=600)
        tables = ("allocations", "allocation_events", "decisions", "usage_samples", "usage_rollups")
        rows = {t: await connection.fetchval(f"SELECT count(*) FROM {t}") for t in tables}
        size = await connection.fetchval(
            "SELECT pg_size_pretty(pg_database_size(current_database()))"
        )
        return {"migrations": migrations, "sums": sums, "rows": rows, "size": size}
    finally:
        await connection.close()


async def examples(connection: asyncpg.Connection) -> Row:
    """Return examples to ask about: a card with many holders, and a pod of the last day."""
    card = await connection.fetchval("SELECT max(uuid) FROM devices")
    pod = await connection.fetchrow(
        "SELECT a.pod_uid, a.namespace, a.pod_name FROM allocations a JOIN decisions d"
        " ON d.allocation_id = a.id WHERE a.ended_at IS NULL ORDER BY a.reserved_at LIMIT 1"
    )
    waits = await connection.fetchval(
        "SELECT pod_uid FROM decisions WHERE outcome = 'refused' ORDER BY at DESC LIMIT 1"
    )
    return {
        "card": card,
        "pod_uid": pod["pod_uid"],
        "waiting": waits,
        "node": "node-000",
        "namespace": pod["namespace"],
        "memory": "8Gi",
        "cores": "30%",
    }


def asked_of(name: str, about: Row) -> Row:
    """Parameters that the question must have, or that make it one."""
    asked = questions()[name]
    names = {parameter.name for parameter in asked.parameters}
    given: Row = {key: about[key] for key in ("memory", "cores") if key in names}
    wanted = {each.name for each in asked.parameters if each.required}
    given |= {key: about[key] for key in ("node", "namespace") if key in wanted}
    if frozenset({"pod_uid"}) in asked.needs:
        given["pod_uid"] = about["waiting" if name == "why-waiting" else "pod_uid"]
    if frozenset({"card"}) in asked.needs:
        given["card"] = about["card"]
        given["since"] = "-30d"
    return given


async def ask_all(connection: asyncpg.Connection, only: list[str]) -> list[Row]:
    """Each question some times; the first with nothing of it in memory."""
    about = await examples(connection)
    server_pid = await connection.fetchval("SELECT pg_backend_pid()")
    found: list[Row] = []
    for name in only or questions():
        times_ms, spent_ms, given = [], [], asked_of(name, about)
        answered: Answer | None = None
        for _ in range(RUNS):
            began, used_ms = time.perf_counter(), cpu_ms(server_pid)
            try:
                answered = await answer(connection, name, given)
            except HamiError as exc:
                print(f"{name}: {exc}")
            times_ms.append((time.perf_counter() - began) * 1000)
            spent_ms.append(cpu_ms(server_pid) - used_ms)
        asked = questions()[name]
        row = {
            "number": asked.number,
            "name": name,
            "rows": len(answered.rows) if answered else None,
            "first_ms": round(times_ms[0], 1),
            "median_ms": round(statistics.median(times_ms), 1),
            "cpu_ms": round(statistics.median(spent_ms), 1),
            "answered": answered is not None,
        }
        found.append(row)
        parameters = "".join(f" {key}={value}" for key, value in given.items())
        print(f"\n{asked.number:>2} {asked.title}  [{name}{parameters}]")
        for example in answered.rows[:2] if answered else ():
            print(f"     {_short(example)}")
        print(
            "     {rows} rows, {median_ms} ms ({first_ms} at first), of it {cpu_ms} of the"
            " server's processor".format(**row)
        )
    return found


def _short(row: Any) -> str:
    text = ", ".join(
        f"{key}={value:%F %T}" if isinstance(value, datetime) else f"{key}={value}"
        for key, value in row.items()
    )
    return text if len(text) < 300 else f"{text[:300]}..."


def main() -> None:
    """Fills, asks, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocations", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--keep", type=Path, help="folder of the filled ledger; asked again later")
    parser.add_argument("only", nargs="*", help="names of questions; all of them if none")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    with TemporaryDirectory(prefix="hami-questions-") as folder:
        home = arguments.keep or Path(folder)
        home.mkdir(exist_ok=True)
        home.chmod(0o755)
        done = home / "filled.json"
        with running(
            postgres.prepare(home / "postgres", durable=False), die_with_parent=True
        ) as server:
            settings = PostgresSettings(
                dsn=SecretStr(server.value.url), command_timeout_s=1200, pool_max=4
            )
            if not done.exists():
                done.write_text(json.dumps(asyncio.run(prepared(settings, arguments)), indent=2))
            figures = json.loads(done.read_text())

            async def ask() -> list[Row]:
                connection = await asyncpg.connect(settings.dsn.get_secret_value(), timeout=30)
                try:
                    return await ask_all(connection, arguments.only)
                finally:
                    await connection.close()

            rows = asyncio.run(ask())
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), **figures, "asked": rows}, indent=2))
    slow = [row["name"] for row in rows if row["median_ms"] > BUDGET_MS or not row["answered"]]
    if slow:
        raise SystemExit(f"slower than {BUDGET_MS:.0f} ms: {', '.join(slow)}")


if __name__ == "__main__":
    main()
