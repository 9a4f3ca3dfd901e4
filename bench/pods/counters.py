"""Counters of the servers' requests and writes: the round trips of a pod.

Each figure is a total since the server's start; a round's share is the difference of two readings.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import asyncpg
import httpx
import redis.asyncio
from hamicommon.k8s.client import KubeApi

_REQUESTS = re.compile(
    r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$", re.MULTILINE
)
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
_READS = ("GET", "LIST")
_RESOURCES = ("pods", "events", "resourceclaims")
REPORTED_S = 11.0
"""An idle session of PostgreSQL reports its counts within 10 s (PGSTAT_IDLE_INTERVAL)."""
# A statement outside a transaction is its own transaction, so the counts are round trips that end
# one. `wal_bytes` is the position in the log: it needs no session's report.
_LEDGER = """
SELECT xact_commit AS commits, xact_rollback AS rollbacks,
       (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal_bytes,
       (SELECT wal_records FROM pg_stat_wal) AS wal_records,
       (SELECT wal_fpi FROM pg_stat_wal) AS wal_full_pages,
       (SELECT sum(n_tup_upd)::bigint FROM pg_stat_user_tables) AS updates,
       (SELECT sum(n_tup_hot_upd)::bigint FROM pg_stat_user_tables) AS hot_updates,
       (SELECT sum(n_tup_ins)::bigint FROM pg_stat_user_tables) AS inserts,
       (SELECT sum(n_tup_del)::bigint FROM pg_stat_user_tables) AS deletes
  FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Addresses of the counters; an empty one means that this run has no such server."""

    api: KubeApi
    postgres: str = ""
    redis: str = ""
    nats_monitor: str = ""

    async def read(self) -> Counter[str]:
        """All of them."""
        found = await api_requests(self.api)
        if self.postgres:
            found += await _ledger(self.postgres)
            found += await _redis(self.redis)
            found += await _nats(self.nats_monitor)
        return found


async def api_requests(api: KubeApi) -> Counter[str]:
    """By verb and resource; heartbeats of nodes are left out."""
    found: Counter[str] = Counter()
    for match in _REQUESTS.finditer(await api.text("/metrics")):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels["verb"] in WRITES + _READS and labels["resource"] in _RESOURCES:
            name = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            found[f"{labels['verb']} {name}"] += int(float(match["count"]))
    return found


_BUSY = """
SELECT (SELECT count(*) FROM allocation_events WHERE published_at IS NULL)
     + (SELECT count(*) FROM allocations WHERE ended_at IS NULL AND state <> 'allocated')
"""
_CARDS = "SELECT count(*) FROM devices WHERE present"


async def ledger_is_idle(dsn: str, *, cards: int) -> None:
    """Wait until so many cards are known, each pod has its own, and all events are announced."""
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval(_CARDS) < cards or await connection.fetchval(_BUSY):
            await connection.execute("SELECT pg_sleep(0.5)")
    finally:
        await connection.close()


async def checkpoint(dsn: str) -> None:
    """From here on the first change of each page is in the log as a whole page, in every round."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


async def _ledger(dsn: str) -> Counter[str]:
    connection = await asyncpg.connect(dsn)
    try:
        row = await connection.fetchrow(_LEDGER)
        # Of each statement: how often it was called; there when the server was started with it.
        calls = await connection.fetch(
            "SELECT 'x' WHERE to_regclass('pg_stat_statements') IS NOT NULL"
        )
        counted = Counter({f"postgres {name}": int(count or 0) for name, count in row.items()})
        if calls:
            statements = await connection.fetch(
                "SELECT left(regexp_replace(query, '\\s+', ' ', 'g'), 70) AS text, sum(calls) AS n"
                " FROM pg_stat_statements GROUP BY 1"
            )
            counted.update({f"sql {each['text']}": int(each["n"]) for each in statements})
        return counted
    finally:
        await connection.close()


async def _redis(url: str) -> Counter[str]:
    client = redis.asyncio.from_url(url)
    try:
        stats = await client.info("commandstats")
    finally:
        await client.aclose()
    return Counter(
        {name.replace("cmdstat_", "redis "): int(each["calls"]) for name, each in stats.items()}
    )


async def _nats(monitor: str) -> Counter[str]:
    async with httpx.AsyncClient() as client:
        answer = (await client.get(f"{monitor}/varz")).json()
    return Counter({"nats in": answer["in_msgs"], "nats out": answer["out_msgs"]})
