"""Sum up usage in Postgres: samples to five-minute buckets, and those to hours.

Postgres sums up its own rows, so no sample is transferred twice. An unknown reading counts as the
average of the known ones of its bucket; if all are unknown the sum is unknown (NULL), never 0.
Buckets are replaced, so repeating a sum changes nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hamicommon.ledger.connection import Connection

from hami_metrics.domain.samples import COARSE_S, FINE_S, bucket_of

# Of a pod that the ledger granted something: while it held it. A region outlives its containers
# until the pod object goes. Pods without any grant (and cards, without a pod) count always.
_COUNTS = """(
    s.pod_uid = '' OR NOT EXISTS (SELECT FROM allocations a WHERE a.pod_uid = s.pod_uid)
    OR EXISTS (SELECT FROM allocations a
                WHERE a.pod_uid = s.pod_uid AND s.sampled_at >= a.reserved_at
                  AND s.sampled_at < coalesce(a.ended_at, 'infinity')))"""

# Two replicas that sum up buckets of one node take turns: who comes second reads what the first
# has written, so the hour has all of its parts.
_TURN = "SELECT pg_advisory_xact_lock(hashtext('hami usage sums'), hashtext($1))"

_INSERT = """
INSERT INTO usage_rollups (bucket_start, bucket_s, node, device_uuid, pod_uid, namespace, pod_name,
    container, sample_count, memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,
    core_percent_sum, core_percent_max, owner_name)
"""
# A bucket that would stay as it is makes no new version of its row.
_REPLACE = """
ON CONFLICT ON CONSTRAINT pk_usage_rollups DO UPDATE SET
    sample_count = excluded.sample_count,
    memory_used_sum_bytes = excluded.memory_used_sum_bytes,
    memory_used_max_bytes = excluded.memory_used_max_bytes,
    memory_limit_max_bytes = excluded.memory_limit_max_bytes,
    core_percent_sum = excluded.core_percent_sum,
    core_percent_max = excluded.core_percent_max, owner_name = excluded.owner_name
WHERE (usage_rollups.sample_count, usage_rollups.memory_used_sum_bytes,
       usage_rollups.memory_used_max_bytes, usage_rollups.memory_limit_max_bytes,
       usage_rollups.core_percent_sum, usage_rollups.core_percent_max, usage_rollups.owner_name)
      IS DISTINCT FROM
      (excluded.sample_count, excluded.memory_used_sum_bytes, excluded.memory_used_max_bytes,
       excluded.memory_limit_max_bytes, excluded.core_percent_sum, excluded.core_percent_max,
       excluded.owner_name)
"""
SUM_SAMPLES = f"""{_INSERT}
SELECT $2, {FINE_S}, s.node, s.device_uuid, s.pod_uid, max(s.namespace), max(s.pod_name),
       s.container, count(*)::int,
       sum(s.memory_used_bytes)::float8 / nullif(count(s.memory_used_bytes), 0) * count(*),
       max(s.memory_used_bytes), max(s.memory_limit_bytes),
       sum(s.core_percent) / nullif(count(s.core_percent), 0) * count(*), max(s.core_percent), NULL
  FROM usage_samples s
 WHERE s.node = $1 AND s.sampled_at >= $2 AND s.sampled_at < $3 AND {_COUNTS}
 GROUP BY s.node, s.device_uuid, s.pod_uid, s.container
{_REPLACE}"""
# As in questions: the deployment, otherwise the controller; empty for a standalone pod.
_OWNER = """(
       SELECT coalesce(nullif(a.deployment, ''), a.owner_name, '') FROM allocations a
        WHERE a.pod_uid = r.pod_uid AND r.pod_uid <> '' ORDER BY a.attempt DESC LIMIT 1)"""
# Each start is named: the key has the node after it, so a range would read all nodes.
SUM_ROLLUPS = f"""{_INSERT}
SELECT $2, {COARSE_S}, r.node, r.device_uuid, r.pod_uid, max(r.namespace), max(r.pod_name),
       r.container, sum(r.sample_count)::int,
       sum(r.memory_used_sum_bytes)
           / nullif(sum(r.sample_count) FILTER (WHERE r.memory_used_sum_bytes IS NOT NULL), 0)
           * sum(r.sample_count),
       max(r.memory_used_max_bytes), max(r.memory_limit_max_bytes),
       sum(r.core_percent_sum)
           / nullif(sum(r.sample_count) FILTER (WHERE r.core_percent_sum IS NOT NULL), 0)
           * sum(r.sample_count),
       max(r.core_percent_max), {_OWNER}
  FROM usage_rollups r
 WHERE r.node = $1 AND r.bucket_s = {FINE_S} AND r.bucket_start = ANY($3::timestamptz[])
 GROUP BY r.node, r.device_uuid, r.pod_uid, r.container
{_REPLACE}"""

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


async def sum_up_bucket(connection: Connection, node: str, start: datetime) -> None:
    """Sum up a node's five minutes from `start`, and the hour that contains them."""
    hour = bucket_of(start, COARSE_S)
    async with connection.transaction():
        await connection.execute(_TURN, node)
        await connection.execute(SUM_SAMPLES, node, start, start + timedelta(seconds=FINE_S))
        parts = [hour + timedelta(seconds=offset_s) for offset_s in range(0, COARSE_S, FINE_S)]
        await connection.execute(SUM_ROLLUPS, node, hour, parts)


async def unsummed_buckets(connection: Connection, since: datetime) -> list[tuple[str, datetime]]:
    """Return (node, bucket start) of buckets whose sums lack samples."""
    rows = await connection.fetch(UNSUMMED, FINE_S, since)
    return [(row["node"], row["bucket_start"]) for row in rows]
