"""Decode rows of the ledger, and the SELECT that reads allocations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ClaimedSlice,
    ContainerGrant,
    DeviceShare,
    Origin,
)
from hamicommon.domain.ids import AllocationId
from hamicommon.ledger.connection import Connection

LIVE_SQL = "a.ended_at IS NULL"
"""SQL condition of live rows; a constraint keeps it equal to the live states."""

COLUMNS = """
a.id::text AS id, a.pod_uid, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.token,
       a.reserved_at, a.deadline, a.traceparent, a.reason, a.annotations, a.origin,
       n.source = 'agent' AS has_agent,
       (SELECT jsonb_agg(jsonb_build_array(c.container_index, c.name, c.role)
                         ORDER BY c.container_index)
          FROM allocation_containers c WHERE c.allocation_id = a.id) AS containers,
       (SELECT jsonb_agg(jsonb_build_array(d.container_index, d.device_uuid, d.vendor,
                                           d.memory_mib, d.core_percent, d.slots, d.type,
                                           d.detail, d.sidecar)
                         ORDER BY d.container_index, d.position)
          FROM allocation_devices d WHERE d.allocation_id = a.id) AS shares,
       CASE WHEN a.origin = 'claim' THEN
       (SELECT jsonb_agg(jsonb_build_array(k.container_index, k.position, k.claim_uid, k.claim_name,
                                           k.request, k.share_id, k.device_uuid, k.vendor,
                                           k.memory_mib, k.core_percent, k.slots, k.counted)
                         ORDER BY k.container_index, k.position)
          FROM allocation_claims k WHERE k.allocation_id = a.id) END AS claims
"""
"""Columns of `allocations a JOIN nodes n` that `allocation_of` reads."""

SELECT_ALLOCATION = f"SELECT {COLUMNS} FROM allocations a JOIN nodes n ON n.name = a.node"

SELECT_LIGHT = """
SELECT a.id::text AS id, a.pod_uid, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.token,
       a.reserved_at, a.deadline, a.traceparent, a.reason, '{}'::jsonb AS annotations,
       a.origin,
       n.source = 'agent' AS has_agent, NULL AS containers, NULL AS shares,
       NULL AS claims
  FROM allocations a JOIN nodes n ON n.name = a.node
"""
"""SELECT without containers, shares and annotations, ten times as fast."""
SELECT_STANDING = f"{SELECT_LIGHT} WHERE {LIVE_SQL} AND a.pod_uid > $1 ORDER BY a.pod_uid LIMIT $2"
SELECT_STANDING_OF = f"{SELECT_LIGHT} WHERE {LIVE_SQL} AND a.pod_uid = ANY($1::text[])"


_PLAIN = (
    *("id", "pod_uid", "namespace", "pod_name", "attempt", "node", "token", "reserved_at"),
    *("deadline", "traceparent", "reason", "annotations", "has_agent"),
)
"""Columns whose values are fields unchanged."""
_SHARE = ("uuid", "vendor", "memory_mib", "core_percent", "slots", "type", "detail")
_CLAIMED = ("container", "position", "claim_uid", "claim", "request", "share_id")
"""Fields in the order of the arrays in `COLUMNS`."""


def allocation_of(row: Any) -> Allocation:
    """Decode a row of `SELECT_ALLOCATION`."""
    shares: dict[int, list[DeviceShare]] = {}
    sidecars = set()
    for index, *values, sidecar in row["shares"] or ():
        if sidecar:
            sidecars.add(index)
        share = DeviceShare(**dict(zip(_SHARE, values, strict=True)))
        shares.setdefault(index, []).append(share)
    return Allocation(
        **{name: row[name] for name in _PLAIN},
        state=AllocationState(row["state"]),
        origin=Origin(row["origin"]),
        containers=tuple(
            ContainerGrant(
                index=index,
                name=name,
                role="sidecar" if index in sidecars else role,
                shares=tuple(shares.get(index, ())),
            )
            for index, name, role in row["containers"] or ()
        ),
        claims=tuple(map(_claimed_slice, row["claims"] or ())),
    )


def _claimed_slice(row: Sequence[Any]) -> ClaimedSlice:
    return ClaimedSlice(
        **dict(zip(_CLAIMED, row[:6], strict=True)),
        share=DeviceShare(**dict(zip(_SHARE[:5], row[6:11], strict=True))),
        counted=row[11],
    )


async def lock_allocation(connection: Connection, allocation_id: AllocationId) -> Allocation | None:
    """Return the allocation, its row locked until the transaction ends."""
    row = await connection.fetchrow(
        f"{SELECT_ALLOCATION} WHERE a.id = $1 FOR UPDATE OF a", allocation_id
    )
    return None if row is None else allocation_of(row)
