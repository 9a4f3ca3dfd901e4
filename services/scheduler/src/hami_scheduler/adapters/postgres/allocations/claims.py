"""Slices that pods hold together by ResourceClaims, inside a transaction of the store.

A slice is counted for one of the pods that hold it, for the first to come; when that one ends, it
is counted for the next, and the card's row does not change. It is given back with the last.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from hamicommon.domain.allocations import Allocation, ClaimedSlice, SliceKey
from hamicommon.domain.ids import AllocationId
from hamicommon.ledger.connection import Connection

from hami_scheduler.adapters.postgres.allocations.writing import NewEvent, insert_events
from hami_scheduler.adapters.postgres.rows import SELECT_ALLOCATION, allocation_of

# One grant of a claim after the other, so that not two of them are the first.
_TURN = """
SELECT pg_advisory_xact_lock(hashtextextended(uid, 24))
  FROM (SELECT DISTINCT uid FROM unnest($1::text[]) AS uid ORDER BY uid) claims
"""
_HELD = """
SELECT k.claim_uid, k.request, k.share_id
  FROM unnest($1::text[], $2::text[], $3::text[]) AS w (claim_uid, request, share_id)
  JOIN allocation_claims k USING (claim_uid, request, share_id)
  JOIN allocations a ON a.id = k.allocation_id
 WHERE k.counted AND a.ended_at IS NULL
 ORDER BY a.id FOR UPDATE OF a
"""
_INSERT = """
INSERT INTO allocation_claims (allocation_id, container_index, position, claim_uid, claim_name,
                               request, share_id, device_uuid, vendor, memory_mib, core_percent,
                               slots, counted)
SELECT $1, s.* FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[],
                           $7::text[], $8::text[], $9::text[], $10::int[], $11::int[], $12::int[],
                           $13::bool[]) AS s
"""
_SHARING = """
  FROM allocation_claims mine JOIN allocation_claims k USING (claim_uid, request, share_id)
  JOIN allocations a ON a.id = k.allocation_id
 WHERE mine.allocation_id = $1 AND mine.counted AND k.allocation_id <> $1 AND a.ended_at IS NULL
"""
_LOCK_HOLDERS = f"""
SELECT a.id FROM allocations a WHERE a.id IN (SELECT k.allocation_id {_SHARING})
 ORDER BY a.id FOR UPDATE
"""
_NEXT_HOLDERS = f"""
SELECT DISTINCT ON (k.claim_uid, k.request, k.share_id)
       k.claim_uid, k.request, k.share_id, k.allocation_id::text AS allocation_id,
       k.container_index, k.position
{_SHARING}
 ORDER BY k.claim_uid, k.request, k.share_id, a.reserved_at, a.id, k.container_index, k.position
"""
_COUNT = """
WITH slice AS (
  UPDATE allocation_claims SET counted = true
   WHERE allocation_id = $1 AND container_index = $2 AND position = $3
  RETURNING *
)
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent, slots)
SELECT s.allocation_id, s.container_index,
       (SELECT coalesce(max(d.position) + 1, 0) FROM allocation_devices d
         WHERE d.allocation_id = $1 AND d.container_index = $2),
       c.name, c.role, s.device_uuid, s.vendor, s.memory_mib, s.core_percent, s.slots
  FROM slice s JOIN allocation_containers c USING (allocation_id, container_index)
"""
# From now on it is counted for this pod: sums over time count no moment twice.
_SINCE_NOW = """
UPDATE allocations SET reserved_at = now(), bound_at = now(),
       allocated_at = CASE WHEN allocated_at IS NOT NULL THEN now() END
 WHERE id = $1
"""


async def counted_elsewhere(
    connection: Connection, claims: Sequence[ClaimedSlice]
) -> Set[SliceKey]:
    """Which of these slices are counted for another live grant.

    Nobody else enters a grant of these claims, and none of those grants ends, until the transaction
    does.
    """
    await connection.fetch(_TURN, [each.claim_uid for each in claims])
    columns = [list(column) for column in zip(*(each.key for each in claims), strict=True)]
    return {
        (row["claim_uid"], row["request"], row["share_id"])
        for row in await connection.fetch(_HELD, *columns)
    }


async def record_claims(
    connection: Connection, allocation_id: AllocationId, claims: Sequence[ClaimedSlice]
) -> None:
    """Write what the pod uses by claims."""
    if not claims:
        return
    rows = [
        (
            *(each.container, each.position, each.claim_uid, each.claim, each.request),
            *(each.share_id, each.share.uuid, each.share.vendor, each.share.memory_mib),
            *(each.share.core_percent, each.share.slots, each.counted),
        )
        for each in claims
    ]
    await connection.execute(_INSERT, allocation_id, *map(list, zip(*rows, strict=True)))


async def passed_on(connection: Connection, old: Allocation, actor: str) -> Set[SliceKey]:
    """Count the slices of the locked `old`, which ends, for those that hold them beside it.

    Returns which have such a holder; the others are to be given back.
    """
    if not any(each.counted for each in old.claims):
        return frozenset()
    if not await connection.fetch(_LOCK_HOLDERS, old.id):
        return frozenset()
    rows = await connection.fetch(_NEXT_HOLDERS, old.id)
    for row in rows:
        place = (row["allocation_id"], row["container_index"], row["position"])
        await connection.execute(_COUNT, *place)
    reason = f"shares the slices that are already counted for pod {old.pod_name}"
    for heir in sorted({row["allocation_id"] for row in rows}):
        await connection.execute(_SINCE_NOW, heir)
        allocation = allocation_of(
            await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", heir)
        )
        event = NewEvent(
            allocation_id=allocation.id,
            pod_uid=allocation.pod_uid,
            previous=allocation.state,
            state=allocation.state,
            reason=reason,
            actor=actor,
            detail={"from_pod_uid": old.pod_uid, "from_allocation_id": old.id},
        )
        await insert_events(connection, [event])
    return {(row["claim_uid"], row["request"], row["share_id"]) for row in rows}
