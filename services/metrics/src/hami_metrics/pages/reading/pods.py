"""Everything that is stored of one pod, as of a moment."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import orjson
from hamicommon.domain.ids import NodeName
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.granted_cards import read_pod_cards

from hami_metrics.pages.domain.details import (
    Attempt,
    GrantChange,
    LimitBreach,
    NamespaceQuota,
    PodRecord,
    Slice,
    StoredDecision,
)
from hami_metrics.pages.reading.usage import read_latest, read_series

MOST_ATTEMPTS = 50
MOST_EVENTS = 200
MOST_DECISIONS = 60
"""In an hour a pod has so many different ones at most (docs/explain.md)."""
CHART_HOURS = 6

_FIND = """
SELECT pod_uid, max(at) AS at FROM (
    SELECT pod_uid, reserved_at AS at FROM allocations
     WHERE namespace = $1 AND pod_name = $2 AND reserved_at <= $3
    UNION ALL
    SELECT pod_uid, last_at FROM decisions
     WHERE namespace = $1 AND pod_name = $2 AND outcome <> 'placed'
       AND at <= $3 AND at > $3::timestamptz - interval '31 days') named
 GROUP BY pod_uid ORDER BY 2 DESC LIMIT 21
"""
_ATTEMPTS = f"""
SELECT a.id::text AS id, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.reason, a.origin,
       a.reserved_at, a.ended_at, a.created_by,
       coalesce(nullif(a.deployment, ''), nullif(a.owner_name, '')) AS owner,
       ARRAY(SELECT jsonb_build_object('container', d.container_name,
                    'role', CASE WHEN d.sidecar THEN 'sidecar' ELSE d.role END,
                    'device_uuid', d.device_uuid, 'memory_mib', d.memory_mib,
                    'core_percent', d.core_percent, 'slots', d.slots)::text
               FROM allocation_devices d WHERE d.allocation_id = a.id
              ORDER BY d.container_index, d.position LIMIT 200) AS slices
  FROM allocations a WHERE a.pod_uid = $1 AND a.reserved_at <= $2
 ORDER BY a.attempt DESC LIMIT {MOST_ATTEMPTS}
"""
_EVENTS = f"""
SELECT e.at, a.attempt, a.node, e.previous_state, e.state, e.reason, e.actor
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.pod_uid = $1 AND e.at <= $2 ORDER BY e.sequence DESC LIMIT {MOST_EVENTS}
"""
_DECISIONS = f"""
SELECT at, last_at, namespace, pod_name, outcome, node, candidates, summary, message,
       reason_counts, repeat_count, phase_ms, trace_id, view_version, request, policy,
       CASE WHEN isfinite(wait_ended_at) THEN wait_ended_at
            WHEN wait_ended_at = '-infinity' THEN last_at + interval '10 minutes'
       END AS wait_ended_at, wait_end
  FROM decisions WHERE pod_uid = $1 AND at <= $2 ORDER BY at DESC, id DESC LIMIT {MOST_DECISIONS}
"""
_LIMITS = """
SELECT container, device_uuid, state, reason, began_at, ended_at FROM limit_periods
 WHERE pod_uid = $1 AND began_at <= $2 ORDER BY ended_at DESC NULLS FIRST, began_at DESC LIMIT 20
"""
_CHECKED = "SELECT checked_at FROM limit_checks WHERE node = $1"
_QUOTAS = """
SELECT resource, limit_amount AS "limit", used_amount AS used FROM quotas
 WHERE namespace = $1 AND (limit_amount IS NOT NULL OR used_amount > 0) ORDER BY resource LIMIT 50
"""


async def find_pods(
    connection: Connection, namespace: str, name: str, at: datetime
) -> list[tuple[str, datetime]]:
    """Uids that had that name, and when each was last seen; the latest first."""
    return [
        (row["pod_uid"], row["at"]) for row in await connection.fetch(_FIND, namespace, name, at)
    ]


async def read_pod(
    connection: Connection, uid: str, at: datetime, *, silent: Collection[NodeName] | None
) -> PodRecord | None:
    """The record; None: the ledger knows no such pod.

    `silent`: nodes whose agents are silent; None: `at` is a moment of the past.
    """
    attempts = await connection.fetch(_ATTEMPTS, uid, at)
    decisions = await connection.fetch(_DECISIONS, uid, at)
    known = (attempts or decisions or [None])[0]
    if known is None:
        return None
    node = attempts[0]["node"] if attempts else None
    namespace, name = known["namespace"], known["pod_name"]
    events = await connection.fetch(_EVENTS, uid, at)
    limits = await connection.fetch(_LIMITS, uid, at)
    latest = [] if node is None else await read_latest(connection, node=node, at=at, pod_uid=uid)
    series = (
        []
        if node is None
        else await read_series(connection, node=node, until=at, hours=CHART_HOURS, pod_uid=uid)
    )
    names = await find_pods(connection, namespace, name, at)
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        attempts=[_attempt(row) for row in attempts],
        events=[GrantChange(**row) for row in reversed(events)],
        decisions=[_decision(row) for row in decisions],
        limits=[LimitBreach(**row) for row in limits],
        limits_checked_at=None if node is None else await connection.fetchval(_CHECKED, node),
        quotas=[NamespaceQuota(**row) for row in await connection.fetch(_QUOTAS, namespace)],
        latest=latest,
        series=series,
        cards=[]
        if silent is None
        else await read_pod_cards(connection, pod_uid=uid, silent=silent),
        namesakes=[(other, seen) for other, seen in names if other != uid][:20],
    )


def _attempt(row: Any) -> Attempt:
    given = {key: value for key, value in row.items() if key not in ("namespace", "pod_name")}
    given["slices"] = [Slice(**orjson.loads(one)) for one in row["slices"]]
    return Attempt(**given)


def _decision(row: Any) -> StoredDecision:
    return StoredDecision(
        **{key: value for key, value in row.items() if key not in ("namespace", "pod_name")}
    )
