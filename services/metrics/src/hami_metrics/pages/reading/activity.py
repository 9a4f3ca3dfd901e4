"""What goes on beside the cards: waiting pods, the last events, what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hamicommon.ledger.connection import Connection
from hamicommon.ledger.questions import answer

from hami_metrics.pages.domain.cluster import MeasuredUse, Occurrence

RECENT = 60
"""A pod that is placed has four; a page shows the newest of each pod."""
SCHEDULER = "hami-scheduler"
"""What a scheduler calls its connections."""
_MIB = 1024 * 1024

_EVENTS = f"""
SELECT e.id, e.at, e.pod_uid, a.namespace, a.pod_name, a.node, e.state, e.reason
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 ORDER BY e.id DESC LIMIT {RECENT}
"""
_EVENTS_AT = f"""
SELECT e.id, e.at, e.pod_uid, a.namespace, a.pod_name, a.node, e.state, e.reason
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.at <= $1 AND e.at > $1 - interval '1 hour' ORDER BY e.at DESC, e.id DESC LIMIT {RECENT}
"""
# The mean of each card's newest bucket; means of older ones are not what it does now.
_USE = f"""
SELECT DISTINCT ON (device_uuid) device_uuid, bucket_start,
       memory_used_sum_bytes / sample_count / {_MIB} AS memory_mib,
       core_percent_sum / sample_count AS core_percent
  FROM usage_rollups
 WHERE bucket_s = 300 AND pod_uid = '' AND bucket_start <= $1
   AND bucket_start > $1 - interval '20 minutes'
 ORDER BY device_uuid, bucket_start DESC
"""


# The publisher of its outbox keeps one connection for as long as it runs. A standby sees none of
# the primary's: unknown. So is when another role's connections were used last.
_SCHEDULERS = """
SELECT CASE WHEN pg_is_in_recovery() THEN NULL ELSE count(*) END AS connections,
       max(state_change) AS used_at
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerActivity:
    """Read what the ledger's server shows of schedulers; None is unknown."""

    connections: int | None
    used_at: datetime | None
    """When one of the connections was used last."""


async def read_schedulers(connection: Connection) -> SchedulerActivity:
    """Connections of schedulers to the ledger."""
    row = await connection.fetchrow(_SCHEDULERS, SCHEDULER)
    assert row is not None
    return SchedulerActivity(connections=row["connections"], used_at=row["used_at"])


async def read_recent(
    connection: Connection, at: datetime | None = None
) -> tuple[tuple[Occurrence, ...], int]:
    """The last events, the newest first, and the number of the newest (0: none)."""
    rows = await (connection.fetch(_EVENTS) if at is None else connection.fetch(_EVENTS_AT, at))
    newest = max((row["id"] for row in rows), default=0)
    return tuple(Occurrence(**{k: v for k, v in row.items() if k != "id"}) for row in rows), newest


async def read_waiting(
    connection: Connection, at: datetime | None = None
) -> tuple[int, dict[str, int]]:
    """How many pods wait, and how many by their first reason: the question `pending-reasons`."""
    found = await answer(connection, "pending-reasons", {} if at is None else {"at": at})
    counts = {str(row["reason_code"]): int(row["pod_count"]) for row in found.rows}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return sum(counts.values()), dict(ordered)


async def read_use(connection: Connection, at: datetime) -> dict[str, MeasuredUse]:
    """What each card did in its newest five minutes before that moment."""
    return {
        row["device_uuid"]: MeasuredUse(
            memory_mib=row["memory_mib"],
            core_percent=row["core_percent"],
            at=row["bucket_start"],
        )
        for row in await connection.fetch(_USE, at)
    }
