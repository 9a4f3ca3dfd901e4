"""From the bus to Postgres: samples a second, processor time, memory and disk, beside a bare COPY.

A durable PostgreSQL with its default settings, a NATS server and the metrics service as a process;
this one sends. One after the other: the rows by COPY alone (without keys, and with those of
`usage_samples`), the same as reports as fast as they are taken, at 20,000 samples/s, the bus read
once more from its beginning; the sums of all five minutes; and a day dropped. Prints a table and
writes bench/results/usage.json; fails when 20,000/s are not kept up with, or when a sample is lost
or there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import asyncpg
import nats
from hami_metrics.adapters.postgres import COLUMNS, PostgresUsageStore
from hami_metrics.domain.rollup import FINE_S, bucket_of
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.deliveries import USAGE
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.ledger.pool import open_pool
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings, PostgresSettings
from pydantic import SecretStr

from bench.filter.figures import fdatasync_ms, machine
from bench.usage.load import ROUND, ROUND_SAMPLES, rounds, rows
from bench.usage.processes import MostMemory
from bench.usage.system import Measured, system

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "usage.json"
GOAL = 20_000
AHEAD = 8 * ROUND_SAMPLES
"""Samples that may wait on the bus, whose stream drops its oldest at 512 MiB."""
LAG_S = 10.0
"""At 20,000/s the last sample is stored so soon after it was sent, else the rate is not kept."""
Row = dict[str, Any]


def figures(what: str, samples: int, took_s: float, used: dict[str, float]) -> Row:
    """One line."""
    row: Row = {"what": what, "samples_per_s": round(samples / took_s), "seconds": round(took_s, 1)}
    row |= {f"{name}_us": round(1e6 * spent / samples, 1) for name, spent in used.items()}
    text = ", ".join(f"{name} {row[f'{name}_us']} us" for name in used)
    print(f"{what}: {row['samples_per_s']} samples/s; processor time a sample: {text}", flush=True)
    return row


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU seconds between two looks."""
    return {name: after[name] - before[name] for name in before}


async def copied(at: Measured, count: int, *, keys: bool) -> Row:
    """The same rows by COPY alone: what Postgres takes at most from one connection."""
    connection = await asyncpg.connect(at.dsn)
    try:
        # Without: as little as a table can cost. With: what `usage_samples` has.
        kept = "INCLUDING ALL" if keys else "INCLUDING DEFAULTS"
        await connection.execute(f"CREATE TABLE bare (LIKE usage_samples {kept})")
        took_s, before = 0.0, at.cpu()
        for batch in rows(count, datetime(2026, 1, 1, tzinfo=UTC)):
            began = time.perf_counter()
            await connection.copy_records_to_table("bare", records=batch, columns=COLUMNS)
            took_s += time.perf_counter() - began
        used = spent(before, at.cpu())
        size = await connection.fetchval("SELECT pg_total_relation_size('bare')")
        await connection.execute("DROP TABLE bare")
    finally:
        await connection.close()
    samples = count * ROUND_SAMPLES
    name = "bare COPY, with keys" if keys else "bare COPY, without keys"
    row = figures(name, samples, took_s, {"Postgres": used["Postgres"], "sender": used["sender"]})
    return row | {"disk_mb_per_million": round(size / samples)}


async def ingested(at: Measured, bus: Bus, count: int, since: datetime, *, paced: bool) -> Row:
    """Reports over the bus, until the last sample is stored."""
    stored = await at.samples("stored")
    before, began = at.cpu(), time.perf_counter()
    sent, late_s = 0, 0.0
    with MostMemory(at.pids["service"]) as memory:
        for number, messages in enumerate(rounds(count, since)):
            if paced:
                due_s = number * ROUND.total_seconds() - (time.perf_counter() - began)
                late_s = max(late_s, -due_s)
                await asyncio.sleep(max(0.0, due_s))
            elif sent > AHEAD:
                await at.until("stored", stored + sent - AHEAD)
            failed = [each for each in await bus.publish_all(messages, timeout_s=30) if each]
            if failed:
                raise SystemExit(f"not sent: {failed[0]}")
            sent += ROUND_SAMPLES
        sent_at = time.perf_counter()
        await at.until("stored", stored + sent)
        ended = time.perf_counter()
    name = f"service at {GOAL}/s" if paced else "service, as fast as it goes"
    row = figures(name, sent, ended - began, spent(before, at.cpu()))
    row |= {"behind_s": round(ended - sent_at, 2), "sender_late_s": round(late_s, 2)}
    row["service_mb"] = round(memory.most_mb)
    print(f"    {row['behind_s']} s behind at the end, service at most {row['service_mb']} MB")
    return row


async def read_again(at: Measured) -> Row:
    """The bus from its beginning, after it forgot what was acknowledged: nothing is new."""
    client = await nats.connect(at.nats_url)
    js = client.jetstream()
    state = (await js.stream_info(USAGE.stream)).state
    repeated = await at.samples("repeated")
    before, began = at.cpu(), time.perf_counter()
    await js.delete_consumer(USAGE.stream, USAGE.consumer)
    await client.close()
    samples = state.messages * ROUND_SAMPLES // 1000
    # Makes the consumer again.
    async with settling_bus(at.nats_url):
        await at.until("repeated", repeated + samples)
    return figures(
        "the bus read again", samples, time.perf_counter() - began, spent(before, at.cpu())
    )


async def summed(at: Measured, nodes: int, starts: list[datetime], samples: int) -> Row:
    """All five minutes of all nodes, as the service sums them up."""
    settings = PostgresSettings(dsn=SecretStr(at.dsn), pool_max=2)
    async with open_pool(settings, "bench") as pool:
        store = PostgresUsageStore(pool)
        before, began = at.cpu(), time.perf_counter()
        for start in starts:
            for node in range(nodes):
                await store.sum_up(f"node-{node:04}", start)
        took_s = time.perf_counter() - began
        row = figures("sums", samples, took_s, spent(before, at.cpu()))
        row["ms_per_node"] = round(1000 * took_s / nodes / len(starts), 1)
        began = time.perf_counter()
        size = await pool.fetchval("SELECT pg_database_size(current_database())")
        last = max(starts).date() + timedelta(days=1)
        days = await store.keep_samples(last, 0)
        freed = size - await pool.fetchval("SELECT pg_database_size(current_database())")
        row |= {
            "drop_ms": round((time.perf_counter() - began) * 1000),
            "days_dropped": len(days),
            "freed_mb": round(freed / 1e6),
        }
        print("    {days_dropped} days dropped in {drop_ms} ms: {freed_mb} MB".format(**row))
    return row


@asynccontextmanager
async def settling_bus(url: str) -> AsyncIterator[Bus]:
    """The scheduler's connection, which acknowledges what the service has settled."""
    async with open_bus(NatsSettings(url=url), SCHEDULER_USER, owns_streams=True) as bus:
        settling = asyncio.create_task(bus.settle_deliveries("scheduler"))
        try:
            yield bus
        finally:
            await end([settling])


async def measure(at: Measured, arguments: argparse.Namespace) -> Row:
    """All of it."""
    found = [await copied(at, arguments.rounds, keys=keys) for keys in (False, True)]
    # Of an hour back at most: older ones are refused.
    day = bucket_of(datetime.now(UTC) - timedelta(minutes=30), FINE_S)
    connection = await asyncpg.connect(at.dsn)
    try:
        async with settling_bus(at.nats_url) as bus:
            await connection.execute(
                "SELECT hami_ensure_partition('usage_samples', $1)", day.date()
            )
            log = await connection.fetchval("SELECT pg_current_wal_lsn()")
            found.append(await ingested(at, bus, arguments.rounds, day, paced=False))
            later = day + arguments.rounds * ROUND
            found.append(await ingested(at, bus, arguments.paced, later, paced=True))
        written = await connection.fetchval("SELECT pg_current_wal_lsn() - $1::pg_lsn", log)
        samples = (arguments.rounds + arguments.paced) * ROUND_SAMPLES
        size = await connection.fetchval(
            "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('usage_samples')"
        )
        found.append(await read_again(at))
        there = await connection.fetchval("SELECT count(*) FROM usage_samples")
        last = later + arguments.paced * ROUND
        starts = [bucket_of(day, FINE_S)]
        while starts[-1] + timedelta(seconds=FINE_S) < last:
            starts.append(starts[-1] + timedelta(seconds=FINE_S))
        found.append(await summed(at, 1000, starts, samples))
        sums = await connection.fetchval(
            "SELECT sum(sample_count) FROM usage_rollups WHERE bucket_s = 300"
        )
    finally:
        await connection.close()
    disk = {
        "disk_mb_per_million": round(int(size) / samples),
        "log_mb_per_million": round(int(written) / samples),
        "samples": samples,
        "stored": there,
        "summed": int(sums),
    }
    print(
        "{stored} of {samples} stored, {summed} summed up; {disk_mb_per_million} MB of disk and"
        " {log_mb_per_million} MB of log a million".format(**disk)
    )
    return {"steps": found, **disk}


def main() -> None:
    """Measures, prints, and fails where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=42, help="of 24,000 samples, at full speed")
    parser.add_argument("--paced", type=int, default=50, help="of 24,000 samples, at 20,000/s")
    arguments = parser.parse_args()
    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))

    async def run(folder: Path) -> Row:
        about["fdatasync_ms"] = round(fdatasync_ms(folder), 3)
        async with system(folder) as at:
            return await measure(at, arguments)

    with TemporaryDirectory(prefix="hami-usage-") as folder:
        Path(folder).chmod(0o755)
        found = asyncio.run(run(Path(folder)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": about, **found}, indent=2))
    behind_s = next(row["behind_s"] for row in found["steps"] if row["what"].endswith("/s"))
    if not found["samples"] == found["stored"] == found["summed"]:
        raise SystemExit("samples were lost, or are there twice")
    if behind_s > LAG_S:
        raise SystemExit(f"{behind_s} s behind at {GOAL} samples/s")


if __name__ == "__main__":
    main()
