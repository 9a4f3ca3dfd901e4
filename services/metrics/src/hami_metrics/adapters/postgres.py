"""Usage in Postgres: bulk writes over raw asyncpg, one partition per day."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import Any

import asyncpg
from hamicommon.ledger.database import translated
from hamicommon.ledger.partitions import keep_partitions

from hami_metrics.adapters.capacity import sum_up_capacity
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hami_metrics.adapters.showback import sum_up_showback
from hami_metrics.domain.rollup import Rollup
from hami_metrics.domain.samples import Sample, Series

_SERIES = ("node", "device_uuid", "pod_uid", "namespace", "pod_name", "container")

INSERT_SAMPLES = """
WITH new AS (
    INSERT INTO usage_samples (sampled_at, node, device_uuid, pod_uid, namespace, pod_name,
        container, memory_used_bytes, memory_limit_bytes, core_percent, core_limit_percent)
    SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[],
        $6::text[], $7::text[], $8::bigint[], $9::bigint[], $10::float8[], $11::int[])
    ON CONFLICT DO NOTHING RETURNING 1)
SELECT count(*) FROM new
"""

# Of a pod that the ledger granted something: while it held it. A region outlives its containers
# until the pod object goes. Pods without any grant (and cards, without a pod) count always.
_COUNTS = """(
    s.pod_uid = '' OR NOT EXISTS (SELECT FROM allocations a WHERE a.pod_uid = s.pod_uid)
    OR EXISTS (SELECT FROM allocations a
                WHERE a.pod_uid = s.pod_uid AND s.sampled_at >= a.reserved_at
                  AND s.sampled_at < coalesce(a.ended_at, 'infinity')))"""

SELECT_SAMPLES = f"""
SELECT sampled_at, node, device_uuid, pod_uid, namespace, pod_name, container,
       memory_used_bytes, memory_limit_bytes, core_percent, core_limit_percent
FROM usage_samples s WHERE node = $1 AND sampled_at >= $2 AND sampled_at < $3 AND {_COUNTS}
"""

UPSERT_ROLLUPS = """
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, pod_uid, namespace, pod_name,
    container, sample_count, memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,
    core_percent_sum, core_percent_max)
SELECT * FROM unnest($1::timestamptz[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[],
    $7::text[], $8::text[], $9::int[], $10::float8[], $11::bigint[], $12::bigint[], $13::float8[],
    $14::float8[])
ON CONFLICT ON CONSTRAINT pk_usage_rollups DO UPDATE SET
    sample_count = excluded.sample_count,
    memory_used_sum_bytes = excluded.memory_used_sum_bytes,
    memory_used_max_bytes = excluded.memory_used_max_bytes,
    memory_limit_max_bytes = excluded.memory_limit_max_bytes,
    core_percent_sum = excluded.core_percent_sum,
    core_percent_max = excluded.core_percent_max
"""

SELECT_ROLLUPS = """
SELECT bucket_start, bucket_s, node, device_uuid, pod_uid, namespace, pod_name, container,
       sample_count, memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,
       core_percent_sum, core_percent_max
FROM usage_rollups
WHERE node = $1 AND bucket_s = $2 AND bucket_start >= $3 AND bucket_start < $4
"""

UNSUMMED = f"""
WITH raw AS (
    SELECT node, to_timestamp(floor(extract(epoch FROM sampled_at) / $1) * $1) AS bucket_start,
           count(*) AS samples
    FROM usage_samples s WHERE sampled_at >= $2 AND {_COUNTS} GROUP BY 1, 2),
summed AS (
    SELECT node, bucket_start, sum(sample_count) AS samples
    FROM usage_rollups WHERE bucket_s = $1::int AND bucket_start >= $2 GROUP BY 1, 2)
SELECT node, bucket_start FROM raw LEFT JOIN summed USING (node, bucket_start)
WHERE summed.samples IS DISTINCT FROM raw.samples ORDER BY bucket_start, node
"""


class PostgresUsageStore:
    """`ports.UsageStore` on the tables usage_samples and usage_rollups."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def write(self, samples: Sequence[Sample]) -> int:
        """See the port."""
        rows = [
            (
                sample.sampled_at,
                *(getattr(sample.series, name) for name in _SERIES),
                sample.memory_used_bytes,
                sample.memory_limit_bytes,
                sample.core_percent,
                sample.core_limit_percent,
            )
            for sample in sorted(samples, key=lambda sample: sample.series.sort_key)
        ]
        if not rows:
            return 0
        async with connection(self._pool) as conn:
            return int(await conn.fetchval(INSERT_SAMPLES, *_columns(rows)))

    async def samples(self, node: str, start: datetime, end: datetime) -> list[Sample]:
        """See the port."""
        async with connection(self._pool) as conn:
            rows = await conn.fetch(SELECT_SAMPLES, node, start, end)
        return [
            Sample(
                series=_series(row),
                sampled_at=row["sampled_at"],
                memory_used_bytes=row["memory_used_bytes"],
                memory_limit_bytes=row["memory_limit_bytes"],
                core_percent=row["core_percent"],
                core_limit_percent=row["core_limit_percent"],
            )
            for row in rows
        ]

    async def write_rollups(self, rollups: Sequence[Rollup]) -> None:
        """See the port."""
        rows = [
            (
                rollup.bucket_start,
                rollup.bucket_s,
                *(getattr(rollup.series, name) for name in _SERIES),
                rollup.sample_count,
                rollup.memory_used_sum_bytes,
                rollup.memory_used_max_bytes,
                rollup.memory_limit_max_bytes,
                rollup.core_percent_sum,
                rollup.core_percent_max,
            )
            for rollup in rollups
        ]
        if rows:
            async with connection(self._pool) as conn:
                await conn.execute(UPSERT_ROLLUPS, *_columns(rows))

    async def rollups(
        self, node: str, bucket_s: int, start: datetime, end: datetime
    ) -> list[Rollup]:
        """See the port."""
        async with connection(self._pool) as conn:
            rows = await conn.fetch(SELECT_ROLLUPS, node, bucket_s, start, end)
        return [
            Rollup(
                series=_series(row),
                **{name: value for name, value in row.items() if name not in _SERIES},
            )
            for row in rows
        ]

    async def unsummed(self, bucket_s: int, since: datetime) -> list[tuple[str, datetime]]:
        """See the port."""
        async with connection(self._pool) as conn:
            rows = await conn.fetch(UNSUMMED, bucket_s, since)
        return [(row["node"], row["bucket_start"]) for row in rows]

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        """See the port. A whole partition goes at once; the default one row by row."""
        async with connection(self._pool) as conn:
            kept = await keep_partitions(
                conn, "usage_samples", "sampled_at", today=today, keep_days=keep_days
            )
        return list(kept.dropped)

    async def sum_up_namespaces(self, now: datetime) -> int:
        """See the port."""
        async with connection(self._pool) as conn:
            return await sum_up_namespaces(conn, now)

    async def sum_up_capacity(self, now: datetime) -> int:
        """See the port."""
        async with connection(self._pool) as conn:
            return max(await sum_up_capacity(conn, now), await sum_up_showback(conn, now))

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        """See the port."""
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
        """See the port."""
        async with connection(self._pool) as conn:
            status = await conn.execute(
                "DELETE FROM namespace_rollups WHERE bucket_s = $1 AND bucket_start < $2",
                bucket_s,
                before,
            )
        return int(status.rpartition(" ")[2])

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        """See the port."""
        async with connection(self._pool) as conn:
            status = await conn.execute(
                "DELETE FROM usage_rollups WHERE bucket_s = $1 AND bucket_start < $2",
                bucket_s,
                before,
            )
        return int(status.rpartition(" ")[2])


@asynccontextmanager
async def connection(pool: asyncpg.Pool) -> AsyncIterator[Any]:
    """One connection of the pool.

    Raises: Unavailable while the server is away, Conflict for a lock that was not granted; a
    mistake in a statement (or a right that is missing) stays what it is.
    """
    with translated():
        async with pool.acquire() as conn:
            yield conn


def _columns(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    return (list(column) for column in zip(*rows, strict=True))


def _series(row: Any) -> Series:
    return Series(**{name: row[name] for name in _SERIES})
