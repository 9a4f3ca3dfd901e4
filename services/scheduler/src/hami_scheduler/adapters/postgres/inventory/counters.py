"""Counters of cards that are no longer the sum of their live grants, and numbers that ran out.

A card's row is locked before it is counted: each grant and each release locks it first and commits
with its grants, so what is counted under the lock is what is held. A live grant without any slice
in the ledger holds what nobody knows; the cards of its node are left as they are until the grant
was put right.
"""

from __future__ import annotations

from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.ledger.database import Database
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.tables.cards import MAX_VERSION

from hami_scheduler.ports.ledger import RepairedCard, RepairedSequence

_NEW_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# No card changes so often that its version is a year ahead of its time.
_TOO_FAR = f"least({_NEW_VERSION} + 31536000000, {MAX_VERSION // 2})"

_HELD = f"""
WITH footprints AS (
    SELECT x.device_uuid, x.allocation_id, {footprint("slots")} AS slots,
           {footprint("memory_mib")} AS memory_mib, {footprint("core_percent")} AS core_percent,
           jsonb_agg(jsonb_build_object(
                         'role', CASE WHEN x.sidecar THEN 'sidecar' ELSE x.role END,
                         'detail', x.detail) ORDER BY x.container_index, x.position)
             FILTER (WHERE x.detail <> '{{}}'::jsonb) AS details
      FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
     WHERE a.ended_at IS NULL AND ($1::text[] IS NULL OR x.device_uuid = ANY($1))
     GROUP BY x.allocation_id, x.device_uuid
), sums AS (
    SELECT device_uuid, sum(slots) AS slots, sum(memory_mib) AS memory_mib,
           sum(core_percent) AS core_percent,
           jsonb_object_agg(allocation_id, details) FILTER (WHERE details IS NOT NULL) AS holdings
      FROM footprints GROUP BY device_uuid
), held AS (
    SELECT d.uuid, coalesce(s.slots, 0)::int AS slots, coalesce(s.memory_mib, 0)::int AS memory_mib,
           coalesce(s.core_percent, 0)::int AS core_percent,
           coalesce(s.holdings, '{{}}'::jsonb) AS holdings
      FROM devices d LEFT JOIN sums s ON s.device_uuid = d.uuid
     WHERE $1::text[] IS NULL OR d.uuid = ANY($1)
)
"""
_DIFFERS = f"""
((d.used_slots, d.used_memory_mib, d.used_core_percent, d.holdings)
 IS DISTINCT FROM (h.slots, h.memory_mib, h.core_percent, h.holdings)
 OR d.version > {_TOO_FAR}
 OR d.ceiling_slots > greatest(d.slots, h.slots)
 OR d.ceiling_memory_mib > greatest(d.memory_mib, h.memory_mib))
"""
_FIND = f"""
{_HELD}
SELECT d.uuid FROM devices d JOIN held h ON h.uuid = d.uuid
 WHERE {_DIFFERS}
   AND NOT EXISTS (SELECT FROM allocations a
                    WHERE a.node = d.node AND a.ended_at IS NULL AND a.origin <> 'claim'
                      AND NOT EXISTS (SELECT FROM allocation_devices x
                                       WHERE x.allocation_id = a.id))
 ORDER BY d.uuid LIMIT 1000
"""
_LOCK = "SELECT uuid FROM devices WHERE uuid = ANY($1::text[]) ORDER BY uuid FOR UPDATE"
_REPAIR = f"""
{_HELD}, before AS (
    SELECT d.* FROM devices d JOIN held h ON h.uuid = d.uuid WHERE {_DIFFERS}
)
UPDATE devices d SET used_slots = h.slots, used_memory_mib = h.memory_mib,
       used_core_percent = h.core_percent, holdings = h.holdings,
       ceiling_slots = greatest(d.slots, h.slots),
       ceiling_memory_mib = greatest(d.memory_mib, h.memory_mib),
       ceiling_core_percent = greatest(d.core_percent, h.core_percent),
       version = CASE WHEN d.version > {_TOO_FAR} THEN {_NEW_VERSION}
                      ELSE greatest(d.version + 1, {_NEW_VERSION}) END,
       updated_at = now()
  FROM held h, before
 WHERE d.uuid = h.uuid AND before.uuid = d.uuid
RETURNING d.uuid, d.node, d.version AS version, before.version AS old_version,
          format('it counted %s slots, %s memory, %s cores; its live grants are %s, %s, %s',
                 before.used_slots, before.used_memory_mib, before.used_core_percent,
                 h.slots, h.memory_mib, h.core_percent) AS detail
"""
_REPAIR_NUMBERS = "SELECT name, was, is_now FROM hami_repair_numbers()"


class PostgresCounters:
    """Counters of cards, and numbers, compared with their rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def repair_cards(self) -> list[RepairedCard]:
        """Count the live grants of every card that has other counters."""
        found = [row["uuid"] for row in await self._database.fetch(_FIND, None)]
        if not found:
            return []
        async with self._database.transaction() as connection:
            await connection.fetch(_LOCK, found)
            rows = await connection.fetch(_REPAIR, found)
        return [
            RepairedCard(
                uuid=GpuUuid(row["uuid"]),
                node=NodeName(row["node"]),
                detail=row["detail"],
                is_older=row["version"] < row["old_version"],
            )
            for row in rows
        ]

    async def repair_sequences(self) -> list[RepairedSequence]:
        """Let numbers continue beyond the newest rows."""
        rows = await self._database.fetch(_REPAIR_NUMBERS)
        return [RepairedSequence(row["name"], row["was"], row["is_now"]) for row in rows]
