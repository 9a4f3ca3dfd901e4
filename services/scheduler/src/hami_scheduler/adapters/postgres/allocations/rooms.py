"""Rooms in Postgres: cards reserved for a waiting pod until the pods evicted for it are gone.

A room is a grant in state `reserved`, which counts on its cards beside those whose pods end, so no
other grant fits there. `preempted` keeps who ends for it, and how that went.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import Conflict
from hamicommon.ledger.card_rows import CardDemand, demands
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.model import Room, Rules

from hami_scheduler.adapters.postgres.rows import SELECT_ALLOCATION, allocation_of
from hami_scheduler.ports.ledger import HeldRoom, Victim

_LEAVING = f"""
{SELECT_ALLOCATION}
 WHERE a.id = ANY($1::uuid[]) AND a.state IN ('bound', 'allocated', 'releasing')
 ORDER BY a.id FOR UPDATE OF a
"""
_RULES = """
SELECT a.policy, e.detail FROM allocations a
  LEFT JOIN allocation_events e ON e.allocation_id = a.id AND e.previous_state IS NULL
 WHERE a.id = $1
"""
_RECORD = """
INSERT INTO preempted (room_id, victim_id, room_priority, victim_priority, evicted_at)
SELECT $1, v.id, $2, v.priority, CASE WHEN v.is_ending THEN now() END
  FROM unnest($3::uuid[], $4::int[], $5::bool[]) AS v (id, priority, is_ending)
"""
# A room lives for minutes, so the few rows of the last hour have it.
_ROOMS = f"""
SELECT r.id::text AS id, r.pod_uid, r.namespace, r.pod_name, r.node, p.room_priority,
       (SELECT sum(memory_mib) FROM (SELECT {footprint("memory_mib")} AS memory_mib
          FROM allocation_devices x WHERE x.allocation_id = r.id GROUP BY x.device_uuid) AS cards
       )::bigint AS memory_mib,
       v.id::text AS victim_id, v.pod_uid AS victim_uid, v.namespace AS victim_namespace,
       v.pod_name AS victim_name, p.evicted_at IS NOT NULL AS is_evicted,
       v.ended_at IS NOT NULL AS is_gone
  FROM preempted p
  JOIN allocations r ON r.id = p.room_id
  JOIN allocations v ON v.id = p.victim_id
 WHERE r.ended_at IS NULL AND r.state = 'reserved' AND p.planned_at > now() - interval '1 hour'
 ORDER BY r.reserved_at, r.id, p.victim_priority DESC, v.id
"""
_NOTE = """
UPDATE preempted SET problem = $3, evicted_at = CASE WHEN $3 = '' THEN now() END
 WHERE room_id = $1 AND victim_id = $2 AND evicted_at IS NULL
"""
_TAKEN = """
SELECT extract(epoch FROM binding_at - reserved_at)::float8 AS after_s FROM allocations
 WHERE id = ANY($1::uuid[]) AND binding_at IS NOT NULL
"""
_IS_HELD = "SELECT FROM allocations WHERE id = $1 AND state = 'reserved'"
# A pod that was being deleted already has the moment of the plan.
_LATELY = """
SELECT (SELECT count(DISTINCT victim_id) FROM preempted
         WHERE evicted_at > planned_at AND evicted_at > now() - interval '1 minute') AS evicted,
       (SELECT count(DISTINCT a.id) FROM allocations a JOIN preempted p ON p.room_id = a.id
         WHERE a.pod_uid = $1 AND a.reserved_at > now() - interval '1 hour') AS rooms
"""


async def find_leaving(connection: Connection, room: Room) -> list[Allocation]:
    """Lock the victims' allocations of a room. Raises: Conflict if one has ended."""
    ids = sorted(each.allocation_id for each in room.victims)
    rows = await connection.fetch(_LEAVING, ids) if ids else []
    if len(rows) != len(ids):
        raise Conflict("a pod that was to end for it has changed; it is planned again")
    return [allocation_of(row) for row in rows]


async def rules_of_room(
    connection: Connection, allocation: Allocation, rules: Rules
) -> tuple[CardDemand, ...]:
    """Return the amounts that a room reserves on each card, by the rules of its pod's placement."""
    row = await connection.fetchrow(_RULES, allocation.id)
    policy, totals = row["policy"] or {}, (row["detail"] or {}).get("core_totals") or {}
    return demands(
        allocation.containers,
        rules,
        policy=Policy(gpu=tuple(policy.get("gpu") or ())),
        core_totals={GpuUuid(uuid): int(total) for uuid, total in totals.items()},
    )


async def record_victims(connection: Connection, room_id: AllocationId, room: Room) -> None:
    """Record the allocations of the pods that are evicted for the room."""
    await connection.execute(
        _RECORD,
        room_id,
        room.priority,
        [each.allocation_id for each in room.victims],
        [each.priority for each in room.victims],
        [each.is_ending for each in room.victims],
    )


class PostgresRooms:
    """Rooms (reserved cards) in the ledger, and the evictions for them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_held_rooms(self) -> list[HeldRoom]:
        """Return the rooms whose victims are not all gone. Raises: Unavailable."""
        rooms: dict[str, HeldRoom] = {}
        for row in await self._database.fetch(_ROOMS):
            rooms.setdefault(row["id"], _room(row)).victims.append(_victim(row))
        return list(rooms.values())

    async def is_held(self, room_id: AllocationId) -> bool:
        """Return whether the room still waits for victims to be gone. Raises: Unavailable."""
        return bool(await self._database.fetch(_IS_HELD, room_id))

    async def taken_after_s(self, rooms: Collection[AllocationId]) -> list[float]:
        """Return how long each of these rooms was held until its pod used it.

        Raises: Unavailable.
        """
        return [row["after_s"] for row in await self._database.fetch(_TAKEN, list(rooms))]

    async def note_eviction(
        self, room_id: AllocationId, victim_id: AllocationId, *, problem: str
    ) -> None:
        """Record that the API server accepted an eviction, or why not. Raises: Unavailable."""
        await self._database.fetch(_NOTE, room_id, victim_id, problem)

    async def lately(self, pod_uid: PodUid) -> tuple[int, int]:
        """Return (evictions in the last minute, rooms of the pod in the last hour).

        Raises: Unavailable.
        """
        row = await self._database.fetchrow(_LATELY, pod_uid)
        return row["evicted"], row["rooms"]


def _room(row: Any) -> HeldRoom:
    return HeldRoom(
        id=AllocationId(row["id"]),
        pod_uid=PodUid(row["pod_uid"]),
        namespace=row["namespace"],
        pod_name=row["pod_name"],
        node=NodeName(row["node"]),
        priority=row["room_priority"],
        memory_mib=row["memory_mib"],
    )


def _victim(row: Any) -> Victim:
    return Victim(
        allocation_id=AllocationId(row["victim_id"]),
        pod_uid=PodUid(row["victim_uid"]),
        namespace=row["victim_namespace"],
        pod_name=row["victim_name"],
        is_evicted=row["is_evicted"],
        is_gone=row["is_gone"],
    )
