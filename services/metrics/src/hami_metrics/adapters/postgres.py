"""Store usage in Postgres by bulk writes, one partition per day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from datetime import date, datetime, timedelta
from typing import Any

import asyncpg
from hamicommon.ledger.database import translate_errors
from hamicommon.ledger.partitions import AHEAD_DAYS, keep_partitions

from hami_metrics.adapters.capacity import sum_up_capacity, sum_up_showback
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hami_metrics.adapters.rollups import sum_up_bucket, unsummed_buckets
from hami_metrics.domain.samples import NodePod, Sample

_SERIES = ("node", "device_uuid", "pod_uid", "namespace", "pod_name", "container")

COLUMNS = (
    *("sampled_at", *_SERIES, "memory_used_bytes", "memory_limit_bytes"),
    *("core_percent", "core_limit_percent"),
)
INSERT_SAMPLES = f"""
WITH new AS (
    INSERT INTO usage_samples ({", ".join(COLUMNS)})
    SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[],
        $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::float8[], $11::int[])
    ON CONFLICT DO NOTHING RETURNING 1)
SELECT count(*) FROM new
"""


GRANTED = """
SELECT DISTINCT a.node, a.pod_uid, a.namespace, a.pod_name
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS p (node, pod_uid, namespace, name)
  JOIN allocations a ON a.pod_uid = p.pod_uid AND a.node = p.node
       AND a.namespace = p.namespace AND a.pod_name = p.name
 WHERE a.ended_at IS NULL OR a.ended_at >= $5
"""
# Dated further ahead than any day has a partition: by a clock that was wrong, or by a node that is
# not to be trusted. By the server's own clock, because ours may be the wrong one.
DELETE_AHEAD = "DELETE FROM usage_samples_default WHERE sampled_at > now() + $1::interval"


class PostgresUsageStore:
    """Store of usage (`ports.UsageStore`) in the tables usage_samples and usage_rollups."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def write(self, samples: Sequence[Sample]) -> int:
        """Store samples; new ones, nearly all, are copied in bulk.

        If one of them is stored already, the rows are compared with the stored ones.
        """
        rows = [
            (
                sample.sampled_at,
                *(getattr(sample.series, name) for name in _SERIES),
                sample.memory_used_bytes,
                sample.memory_limit_bytes,
                sample.core_percent,
                sample.core_limit_percent,
            )
            # In one order, so that two writers never deadlock.
            for sample in sorted(samples, key=lambda each: (each.sampled_at, each.series.sort_key))
        ]
        if not rows:
            return 0
        async with connection(self._pool) as conn:
            try:
                await conn.copy_records_to_table("usage_samples", records=rows, columns=COLUMNS)
            except asyncpg.UniqueViolationError:
                return int(await conn.fetchval(INSERT_SAMPLES, *_columns(rows)))
            return len(rows)

    async def granted_pods(self, pods: Set[NodePod], since: datetime) -> set[NodePod]:
        """Return the pods that had a grant on their node since then."""
        async with connection(self._pool) as conn:
            rows = await conn.fetch(GRANTED, *_columns(sorted(pods)), since) if pods else ()
        return {(row["node"], row["pod_uid"], row["namespace"], row["pod_name"]) for row in rows}

    async def sum_up(self, node: str, start: datetime) -> None:
        """Sum up a node's samples of a bucket, and its hour."""
        async with connection(self._pool) as conn:
            await sum_up_bucket(conn, node, start)

    async def unsummed_buckets(self, since: datetime) -> list[tuple[str, datetime]]:
        """Return buckets with samples that are not summed up."""
        async with connection(self._pool) as conn:
            return await unsummed_buckets(conn, since)

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        """Create coming partitions and drop those of old days.

        The default one row by row, with the rows that are dated ahead.
        """
        async with connection(self._pool) as conn:
            kept = await keep_partitions(
                conn, "usage_samples", "sampled_at", today=today, keep_days=keep_days
            )
            await conn.execute(DELETE_AHEAD, timedelta(days=AHEAD_DAYS + 1))
        return list(kept.dropped)

    async def sum_up_namespaces(self, now: datetime) -> int:
        """Sum up granted and used amounts of namespaces."""
        async with connection(self._pool) as conn:
            return await sum_up_namespaces(conn, now)

    async def sum_up_capacity(self, now: datetime) -> int:
        """Sum up card time by state and by holder."""
        async with connection(self._pool) as conn:
            return max(await sum_up_capacity(conn, now), await sum_up_showback(conn, now))

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        """Delete old sums of card time; return their number."""
        async with connection(self._pool) as conn:
            deleted = 0
            for table in ("capacity_rollups", "showback_rollups"):
                status = await conn.execute(
                    f"DELETE FROM {table} WHERE bucket_s = $1 AND bucket_start < $2",
                    bucket_s,
                    before,
                )
                deleted += int(status.rpartition(" ")[2])
        return deleted

    async def forget_namespaces(self, bucket_s: int, before: datetime) -> int:
        """Delete old sums of namespaces; return their number."""
        async with connection(self._pool) as conn:
            status = await conn.execute(
                "DELETE FROM namespace_rollups WHERE bucket_s = $1 AND bucket_start < $2",
                bucket_s,
                before,
            )
        return int(status.rpartition(" ")[2])

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        """Delete old sums of usage; return their number."""
        async with connection(self._pool) as conn:
            status = await conn.execute(
                "DELETE FROM usage_rollups WHERE bucket_s = $1 AND bucket_start < $2",
                bucket_s,
                before,
            )
        return int(status.rpartition(" ")[2])


@asynccontextmanager
async def connection(pool: asyncpg.Pool) -> AsyncIterator[Any]:
    """Yield a connection of the pool.

    Raises: Unavailable while the server is unavailable, Conflict for a lock that was not granted; a
    mistake in a statement (or a missing right) is raised unchanged.
    """
    with translate_errors():
        async with pool.acquire() as conn:
            yield conn


def _columns(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    return (list(column) for column in zip(*rows, strict=True))
