"""Cost of heartbeats: messages and bytes by NATS' own counters, CPU time by process."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx

from bench.scale.stages import Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one moment."""

    at_s: float
    nats_in: int
    nats_in_bytes: int
    nats_out: int
    nats_out_bytes: int
    commits: int
    wal_bytes: int
    scheduler_cpu_s: float
    postgres_cpu_s: float
    nats_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Backlog of the consumer of inventories."""

    pending: int
    """Messages that nobody has taken yet."""
    unacknowledged: int


def read(servers: Servers, scheduler_pid: int) -> Reading:
    """All counters now."""
    varz = httpx.get(f"{servers.nats_monitor}/varz", timeout=30).json()
    commits, wal_bytes = asyncio.run(_ledger(servers.dsn))
    return Reading(
        at_s=time.monotonic(),
        nats_in=varz["in_msgs"],
        nats_in_bytes=varz["in_bytes"],
        nats_out=varz["out_msgs"],
        nats_out_bytes=varz["out_bytes"],
        commits=commits,
        wal_bytes=wal_bytes,
        scheduler_cpu_s=tree_cpu_s(scheduler_pid),
        postgres_cpu_s=tree_cpu_s(servers.postgres_pid),
        nats_cpu_s=tree_cpu_s(servers.nats_pid),
    )


def between(first: Reading, last: Reading) -> dict[str, float]:
    """Rates per second, and shares of one processor."""
    seconds = last.at_s - first.at_s

    def rate(name: str, digits: int = 0) -> float:
        return float(round((getattr(last, name) - getattr(first, name)) / seconds, digits))

    return {
        "seconds": round(seconds, 1),
        "nats_in_per_s": rate("nats_in"),
        "nats_in_kb_per_s": round(rate("nats_in_bytes") / 1000),
        "nats_out_per_s": rate("nats_out"),
        "nats_out_kb_per_s": round(rate("nats_out_bytes") / 1000),
        "commits_per_s": rate("commits", 1),
        "wal_kb_per_s": round(rate("wal_bytes") / 1000, 1),
        "scheduler_cores": rate("scheduler_cpu_s", 3),
        "postgres_cores": rate("postgres_cpu_s", 3),
        "nats_cores": rate("nats_cpu_s", 3),
    }


def backlog(servers: Servers) -> Backlog:
    """Return the backlog of the schedulers' inventory consumer."""
    query = f"{servers.nats_monitor}/jsz?consumers=true&streams=true&accounts=true"
    found = httpx.get(query, timeout=30).json()
    for account in found["account_details"]:
        for stream in account.get("stream_detail", ()):
            for consumer in stream.get("consumer_detail") or ():
                if consumer["name"] == "scheduler-inventory":
                    return Backlog(
                        pending=consumer["num_pending"], unacknowledged=consumer["num_ack_pending"]
                    )
    raise SystemExit("NATS knows no consumer scheduler-inventory")


async def _ledger(dsn: str) -> tuple[int, int]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(
            "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
            " (SELECT wal_bytes::bigint FROM pg_stat_wal)"
        )
        return int(row[0]), int(row[1])
    finally:
        await connection.close()


async def last_heard(dsn: str) -> tuple[int, float]:
    """(nodes that have reported, seconds since the one that did longest ago)."""
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(
            "SELECT count(inventory_at), coalesce(max(extract(epoch FROM now() - inventory_at)), 0)"
            " FROM nodes WHERE gone_at IS NULL"
        )
        return int(row[0]), float(row[1])
    finally:
        await connection.close()


def tree_cpu_s(pid: int) -> float:
    """CPU time of a process and all that descend from it, those that ended included."""
    ticks = 0
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15]))
    for each, used in spent.items():
        line = each
        while line > 1 and line != pid:
            line = parents.get(line, 0)
        ticks += used if line == pid else 0
    return ticks / int(os.sysconf("SC_CLK_TCK"))
