"""Sum up granted and used amounts of namespaces per hour and day in Postgres.

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
# As the question idle-held has it, by namespace. An hour without any idle slice has 0.
_IDLE_HOURS = """
WITH idle AS (
    SELECT u.bucket_start, u.namespace,
           sum(extract(epoch FROM
               least(coalesce(a.ended_at, 'infinity'), u.bucket_start + interval '1 hour')
               - greatest(a.reserved_at, u.bucket_start))) AS seconds
      FROM usage_rollups u JOIN allocations a
        ON a.pod_uid = u.pod_uid AND a.reserved_at < u.bucket_start + interval '1 hour'
           AND coalesce(a.ended_at, 'infinity') > u.bucket_start
     WHERE u.bucket_s = 3600 AND u.bucket_start >= $1 AND u.bucket_start < $2
       AND u.pod_uid <> '' AND u.core_percent_max = 0
     GROUP BY u.bucket_start, u.namespace
), hours AS (
    SELECT n.bucket_start, n.namespace, coalesce(i.seconds, 0) AS seconds
      FROM namespace_rollups n LEFT JOIN idle i USING (bucket_start, namespace)
     WHERE n.bucket_s = 3600 AND n.bucket_start >= $1 AND n.bucket_start < $2
       AND n.sample_count > 0
)
UPDATE namespace_rollups n SET idle_s = h.seconds FROM hours h
 WHERE n.bucket_s = 3600 AND n.bucket_start = h.bucket_start AND n.namespace = h.namespace
   AND n.idle_s IS DISTINCT FROM h.seconds
"""
# Unknown for the day where it is for one of its hours.
_IDLE_DAY = """
WITH days AS (
    SELECT namespace, CASE WHEN bool_and(idle_s IS NOT NULL OR sample_count IS NULL)
                           THEN sum(idle_s) END AS seconds
      FROM namespace_rollups
     WHERE bucket_s = 3600 AND bucket_start >= $1 AND bucket_start < $1 + interval '1 day'
     GROUP BY namespace
)
UPDATE namespace_rollups n SET idle_s = d.seconds FROM days d
 WHERE n.bucket_s = 86400 AND n.bucket_start = $1 AND n.namespace = d.namespace
   AND n.idle_s IS DISTINCT FROM d.seconds
"""
# From the first hour on of which the hours of pods and those of namespaces are still there.
_NOT_IDLE_YET = """
WITH kept AS (
    SELECT greatest((SELECT min(bucket_start) FROM usage_rollups
                      WHERE bucket_s = 3600 AND pod_uid <> ''),
                    (SELECT min(bucket_start) FROM namespace_rollups WHERE bucket_s = 3600))
               AS since
)
SELECT DISTINCT date_trunc('day', bucket_start, 'UTC') AS day,
       greatest(date_trunc('day', bucket_start, 'UTC'), kept.since) AS since
  FROM namespace_rollups CROSS JOIN kept
 WHERE bucket_s = 3600 AND idle_s IS NULL AND sample_count > 0 AND bucket_start >= kept.since
 ORDER BY day DESC
"""


async def sum_up_namespaces(connection: Connection, now: datetime) -> int:
    """Sum up every hour that ended since the last call, and the last few hours again.

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
            await connection.execute(_IDLE_HOURS, start, end)
            await connection.execute(_DAYS, midnight, midnight + DAY)
            await connection.execute(_IDLE_DAY, midnight)
        done += (end - start) // HOUR
        start = end
    await _fill_idle(connection)
    return done


async def _fill_idle(connection: Connection) -> None:
    """Compute idle hours of days from before that column existed, the newest day first."""
    for row in await connection.fetch(_NOT_IDLE_YET):
        async with connection.transaction():
            if not await connection.fetchval(_TURN):
                return
            await connection.execute(_IDLE_HOURS, row["since"], row["day"] + DAY)
            await connection.execute(_IDLE_DAY, row["day"])
