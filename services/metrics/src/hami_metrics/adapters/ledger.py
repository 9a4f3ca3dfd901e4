"""Read the ledger for Prometheus in one consistent, read-only transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import asyncpg
from hamicommon.domain.ids import card_id
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.questions import answer

from hami_metrics.adapters.postgres import connection
from hami_metrics.domain.cluster import (
    DECISIONS_WINDOW_S,
    ClaimCounts,
    ClusterCard,
    ClusterMigInstance,
    ClusterSnapshot,
    PendingAge,
    PodSlice,
    Quota,
)

_LIVE = "a.ended_at IS NULL"

CARDS = """
SELECT d.node, d.uuid, d.index, d.type, d.slots, d.memory_mib, d.core_percent, d.used_slots,
       d.used_memory_mib, d.used_core_percent, d.healthy,
       d.cordoned OR n.unschedulable AS cordoned
FROM devices d JOIN nodes n ON n.name = d.node
WHERE d.present AND n.gone_at IS NULL ORDER BY d.node, d.index
"""

SLICES = f"""
SELECT a.namespace, a.pod_name, a.node, x.device_uuid,
       {footprint("memory_mib")} AS memory_mib,
       {footprint("core_percent")} AS core_percent
FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
WHERE {_LIVE} GROUP BY a.id, x.device_uuid ORDER BY a.namespace, a.pod_name, x.device_uuid
"""

# The ledger keeps them as the pod's annotation has them; containers that follow on one another may
# share one.
INSTANCES = f"""
SELECT DISTINCT a.node, i->>'gpuUUID' AS device_uuid, d.index AS device_index,
       i->>'migUUID' AS mig_uuid, i->>'profile' AS profile,
       (i->>'gpuInstanceID')::int AS gpu_instance_id,
       (i->>'computeInstanceID')::int AS compute_instance_id,
       (i#>>'{{placement,start}}')::int AS start, (i#>>'{{placement,size}}')::int AS size
FROM allocations a,
     jsonb_array_elements((a.annotations->>'{MIG_ALLOCATIONS}')::jsonb) i
     JOIN devices d ON d.uuid = i->>'gpuUUID'
WHERE {_LIVE} AND a.annotations ? '{MIG_ALLOCATIONS}' AND i ? 'migUUID'
ORDER BY a.node, device_index, start
"""

QUOTAS = """
SELECT namespace, resource, limit_amount AS "limit", used_amount AS used
FROM quotas ORDER BY namespace, resource
"""

STATES = f"SELECT a.state, count(*) AS pods FROM allocations a WHERE {_LIVE} GROUP BY a.state"

ORIGINS = f"SELECT a.origin, count(*) AS pods FROM allocations a WHERE {_LIVE} GROUP BY a.origin"

CLAIMS = f"""
SELECT count(DISTINCT k.claim_uid) AS held, count(DISTINCT k.allocation_id) AS holders
FROM allocations a JOIN allocation_claims k ON k.allocation_id = a.id
WHERE {_LIVE} AND a.origin = 'claim'
"""

DECISIONS = """
SELECT outcome, sum(repeat_count)::bigint AS count FROM decisions
WHERE last_at > now() - $1::interval AND at > now() - interval '1 day' AND pod_name <> ''
GROUP BY outcome
"""

# Nodes of other device plugins have no agent that could fall silent.
HEARTBEATS = """
SELECT name, inventory_at FROM nodes
WHERE gone_at IS NULL AND inventory_at NOTNULL AND source = 'agent'
"""


class PostgresLedger:
    """Reader of the ledger (`ports.Ledger`) in Postgres."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def snapshot(self) -> ClusterSnapshot:
        """Return a consistent snapshot; cards are named by id and node, as device plugins do."""
        async with connection(self._pool) as conn:
            # The page shows the answer to the same question.
            waiting = await answer(conn, "pending-reasons", {})
        async with (
            connection(self._pool) as conn,
            conn.transaction(isolation="repeatable_read", readonly=True),
        ):
            decisions = await conn.fetch(DECISIONS, timedelta(seconds=DECISIONS_WINDOW_S))
            return ClusterSnapshot(
                taken_at=await conn.fetchval("SELECT now()"),
                cards=tuple(
                    ClusterCard(**{**row, "uuid": card_id(row["uuid"])})
                    for row in await conn.fetch(CARDS)
                ),
                slices=tuple(
                    PodSlice(**{**row, "device_uuid": card_id(row["device_uuid"])})
                    for row in await conn.fetch(SLICES)
                ),
                instances=tuple(ClusterMigInstance(**row) for row in await conn.fetch(INSTANCES)),
                quotas=tuple(Quota(**row) for row in await conn.fetch(QUOTAS)),
                allocations_by_state={
                    row["state"]: row["pods"] for row in await conn.fetch(STATES)
                },
                allocations_by_origin={
                    row["origin"]: row["pods"] for row in await conn.fetch(ORIGINS)
                },
                claims=ClaimCounts(**await conn.fetchrow(CLAIMS)),
                decisions_by_outcome={row["outcome"]: row["count"] for row in decisions},
                pending=_by_age(waiting.rows),
                heartbeats={
                    row["name"]: row["inventory_at"] for row in await conn.fetch(HEARTBEATS)
                },
            )


def _by_age(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, PendingAge], int]:
    return {
        (str(row["reason_code"]), age): int(row[f"{age}_count"])
        for row in rows
        for age in PendingAge
    }
