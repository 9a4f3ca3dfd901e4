"""What was measured: the newest samples, and series of sums for charts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hamicommon.ledger.connection import Connection

from hami_metrics.pages.domain.cluster import MeasuredUse
from hami_metrics.pages.domain.details import LatestUse, UsePoint

MOST_POINTS = 12_000
"""Of all series of a page: 12 series of 1000."""
FRESH = timedelta(seconds=90)
"""An older sample is not what is used now: agents report at least every half of it."""
_MIB = 1024 * 1024

# One probe of the index per bucket: a range would read those of all nodes.
_SERIES = f"""
SELECT bucket_start AS at, device_uuid, memory_used_sum_bytes / sample_count / {_MIB} AS memory_mib,
       memory_used_max_bytes / {_MIB}.0::float8 AS memory_most_mib,
       core_percent_sum / sample_count AS core_percent, core_percent_max AS core_most_percent
  FROM usage_rollups
 WHERE bucket_start = ANY($1::timestamptz[]) AND bucket_s = $2 AND node = $3
   AND ($4::text IS NULL OR device_uuid = $4) AND pod_uid = $5
 ORDER BY device_uuid, bucket_start, container LIMIT {MOST_POINTS}
"""
_LATEST = f"""
SELECT DISTINCT ON (device_uuid, pod_uid, container)
       sampled_at AS at, device_uuid, pod_uid, container,
       memory_used_bytes / {_MIB}.0::float8 AS memory_mib,
       memory_limit_bytes / {_MIB}.0::float8 AS memory_limit_mib, core_percent
  FROM usage_samples
 WHERE node = $1 AND sampled_at > $2::timestamptz - $3::interval AND sampled_at <= $2
   AND ($4::text IS NULL OR pod_uid = $4)
 ORDER BY device_uuid, pod_uid, container, sampled_at DESC LIMIT 5000
"""

_NEWEST = f"""
SELECT DISTINCT ON (device_uuid, pod_uid, container)
       sampled_at AS at, device_uuid, pod_uid, container,
       memory_used_bytes / {_MIB}.0::float8 AS memory_mib,
       memory_limit_bytes / {_MIB}.0::float8 AS memory_limit_mib, core_percent
  FROM usage_samples
 WHERE node = ANY($1::text[]) AND sampled_at > $2::timestamptz - $3::interval
   AND sampled_at <= $2 AND pod_uid = ANY($4::text[])
 ORDER BY device_uuid, pod_uid, container, sampled_at DESC LIMIT 20000
"""
RECENT_BUCKETS = 4
"""The one that is not summed up yet, and the fifteen minutes before it."""
_PODS_USE = f"""
SELECT DISTINCT ON (pod_uid) pod_uid, bucket_start,
       sum(memory_used_sum_bytes / sample_count / {_MIB}) AS memory_mib,
       sum(core_percent_sum / sample_count) AS core_percent
  FROM usage_rollups
 WHERE bucket_start = ANY($1::timestamptz[]) AND bucket_s = 300 AND node = ANY($2::text[])
   AND pod_uid = ANY($3::text[])
 GROUP BY pod_uid, bucket_start ORDER BY pod_uid, bucket_start DESC
"""


async def read_series(
    connection: Connection,
    *,
    node: str,
    until: datetime,
    hours: int,
    device_uuid: str | None = None,
    pod_uid: str = "",
) -> list[UsePoint]:
    """Five-minute means and maxima of a node's cards; hourly ones where it is more than a day."""
    bucket_s = 300 if hours <= 24 else 3600
    end = int(until.timestamp()) // bucket_s * bucket_s
    count = min(hours * 3600 // bucket_s, 1000)
    buckets = [datetime.fromtimestamp(end - n * bucket_s, UTC) for n in range(count)]
    rows = await connection.fetch(_SERIES, buckets, bucket_s, node, device_uuid, pod_uid)
    return [UsePoint(**row) for row in rows]


async def read_latest(
    connection: Connection, *, node: str, at: datetime, pod_uid: str | None = None
) -> list[LatestUse]:
    """The newest sample of each card and slice of the node that was fresh at that moment."""
    return [LatestUse(**row) for row in await connection.fetch(_LATEST, node, at, FRESH, pod_uid)]


async def read_newest(
    connection: Connection, *, nodes: Sequence[str], uids: Sequence[str], at: datetime
) -> list[LatestUse]:
    """The newest fresh sample of these pods' slices on these nodes; uid `""`: of whole cards."""
    rows = await connection.fetch(_NEWEST, list(nodes), at, FRESH, list(uids))
    return [LatestUse(**row) for row in rows]


async def read_pods_use(
    connection: Connection, *, nodes: Sequence[str], uids: Sequence[str], at: datetime
) -> dict[str, MeasuredUse]:
    """What each of these pods did in its newest five minutes, over all its slices; by uid."""
    end = int(at.timestamp()) // 300 * 300
    buckets = [datetime.fromtimestamp(end - 300 * n, UTC) for n in range(RECENT_BUCKETS)]
    return {
        row["pod_uid"]: MeasuredUse(
            memory_mib=row["memory_mib"], core_percent=row["core_percent"], at=row["bucket_start"]
        )
        for row in await connection.fetch(_PODS_USE, buckets, list(nodes), list(uids))
    }
