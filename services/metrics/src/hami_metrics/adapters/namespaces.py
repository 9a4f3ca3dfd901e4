"""Hours and days of namespaces in Postgres: what was granted and what was used.

In: the ledger's grants and the hourly sums of usage. Out: `namespace_rollups`, from which totals of
months are answered. The sums of the last hours are replaced each time, so doing it twice (or in two
replicas, one after the other) changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hamicommon.ledger.connection import Connection

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# Usage may come late: the stream keeps an hour, and an agent may have buffered before that.
LATE = timedelta(hours=3)

_TURN = "SELECT pg_try_advisory_xact_lock(hashtext('hami namespace rollups'))"
_SINCE = """
SELECT coalesce((SELECT max(bucket_start) + interval '1 hour' FROM namespace_rollups
                  WHERE bucket_s = 3600),
                (SELECT min(reserved_at) FROM allocations))
"""
# A grant counts from its reservation to its end; one that lives, to the end of the span.
_HOURS = """
WITH held AS (
    SELECT id, namespace, reserved_at, coalesce(ended_at, $2) AS ended_at FROM allocations
     WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) && tstzrange($1, $2)
    UNION ALL
    SELECT id, namespace, reserved_at, $2 FROM allocations
     WHERE ended_at IS NULL AND reserved_at < $2
), granted AS (
    SELECT h.namespace, hour, x.slots, x.memory_mib, x.core_percent,
           x.memory_mib::float8 / nullif(d.memory_mib, 0) AS card,
           extract(epoch FROM least(h.ended_at, hour + interval '1 hour')
                              - greatest(h.reserved_at, hour))::float8 AS seconds
      FROM held h
      JOIN allocation_devices x ON x.allocation_id = h.id AND x.role = 'app'
      JOIN devices d ON d.uuid = x.device_uuid
      CROSS JOIN LATERAL generate_series(
               greatest(date_trunc('hour', h.reserved_at, 'UTC'), $1),
               least(h.ended_at, $2 - interval '1 microsecond'), interval '1 hour') AS hour
), grants AS (
    SELECT hour AS bucket_start, namespace, sum(seconds * slots) AS slice_s,
           sum(seconds * coalesce(card, 0)) AS card_s, sum(seconds * memory_mib) AS memory_mib_s,
           sum(seconds * core_percent) / 100 AS core_s
      FROM granted WHERE seconds > 0 GROUP BY hour, namespace
), used AS (
    SELECT bucket_start, namespace, sum(sample_count) AS sample_count,
           sum(core_percent_sum) AS core_percent_sum,
           sum(memory_used_sum_bytes) AS memory_used_sum_bytes
      FROM usage_rollups
     WHERE bucket_s = 3600 AND pod_uid <> '' AND bucket_start >= $1 AND bucket_start < $2
     GROUP BY bucket_start, namespace
)
INSERT INTO namespace_rollups (bucket_start, bucket_s, namespace, slice_s, card_s, memory_mib_s,
                               core_s, sample_count, core_percent_sum, memory_used_sum_bytes)
SELECT bucket_start, 3600, namespace, coalesce(slice_s, 0), coalesce(card_s, 0),
       coalesce(memory_mib_s, 0), coalesce(core_s, 0), sample_count, core_percent_sum,
       memory_used_sum_bytes
  FROM grants FULL JOIN used USING (bucket_start, namespace)
ON CONFLICT ON CONSTRAINT pk_namespace_rollups DO UPDATE SET
    slice_s = excluded.slice_s, card_s = excluded.card_s, memory_mib_s = excluded.memory_mib_s,
    core_s = excluded.core_s, sample_count = excluded.sample_count,
    core_percent_sum = excluded.core_percent_sum,
    memory_used_sum_bytes = excluded.memory_used_sum_bytes
"""
_DAYS = """
INSERT INTO namespace_rollups (bucket_start, bucket_s, namespace, slice_s, card_s, memory_mib_s,
                               core_s, sample_count, core_percent_sum, memory_used_sum_bytes)
SELECT date_trunc('day', bucket_start, 'UTC'), 86400, namespace, sum(slice_s), sum(card_s),
       sum(memory_mib_s), sum(core_s), sum(sample_count), sum(core_percent_sum),
       sum(memory_used_sum_bytes)
  FROM namespace_rollups
 WHERE bucket_s = 3600 AND bucket_start >= $1 AND bucket_start < $2
 GROUP BY 1, namespace
ON CONFLICT ON CONSTRAINT pk_namespace_rollups DO UPDATE SET
    slice_s = excluded.slice_s, card_s = excluded.card_s, memory_mib_s = excluded.memory_mib_s,
    core_s = excluded.core_s, sample_count = excluded.sample_count,
    core_percent_sum = excluded.core_percent_sum,
    memory_used_sum_bytes = excluded.memory_used_sum_bytes
"""


async def sum_up_namespaces(connection: Connection, now: datetime) -> int:
    """Sums up every hour that ended since the last time, and the last few again.

    One transaction per day, so that a first run over months holds nothing for long. Returns the
    hours that were summed up; 0 when another replica is at it.
    """
    until = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    since = await connection.fetchval(_SINCE)
    if since is None:
        return 0
    start = min(since.astimezone(UTC), until) - LATE
    start = start.replace(minute=0, second=0, microsecond=0)
    done = 0
    while start < until:
        midnight = start.replace(hour=0)
        end = min(midnight + DAY, until)
        async with connection.transaction():
            if not await connection.fetchval(_TURN):
                return done
            await connection.execute(_HOURS, start, end)
            await connection.execute(_DAYS, midnight, midnight + DAY)
        done += (end - start) // HOUR
        start = end
    return done
