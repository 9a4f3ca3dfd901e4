"""Repair rows of the ledger that contradict other rows.

Grants: a row and its event are written in one transaction, and events can't be changed; if they
differ, the row is wrong. Cards: a row is locked before it is counted, as by each grant and each
release, so the count under the lock is the actual use. The use of a live grant without any slice in
the ledger is unknown; the cards of its node are not changed until the grant is repaired. Each
repair locks the row and checks again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database
from hamicommon.ledger.footprint import footprint
from hamicommon.ledger.tables.cards import MAX_VERSION

from hami_scheduler.adapters.postgres.allocations.writing import (
    SHARE_COLUMNS,
    SHARE_VALUES,
    NewEvent,
    columns,
    insert_events,
    share_rows,
)
from hami_scheduler.adapters.postgres.rows import lock_allocation
from hami_scheduler.ports.ledger import RepairedCard, RepairedRow

_LAST_EVENT = """
CROSS JOIN LATERAL (SELECT e.state, e.pod_uid, e.at FROM allocation_events e
                     WHERE e.allocation_id = a.id ORDER BY e.sequence DESC LIMIT 1) AS last
"""
_LIES = "(last.state, last.pod_uid) IS DISTINCT FROM (a.state, a.pod_uid)"
_FIND = f"""
SELECT a.id::text AS id FROM allocations a {_LAST_EVENT}
 WHERE a.ended_at IS NULL AND {_LIES} ORDER BY a.id LIMIT 1000
"""
_LOCK = "SELECT id FROM allocations WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE"
# A live state has no end; another one ended with its event.
_BY_HISTORY = f"""
WITH lying AS (
    SELECT a.id, a.state, a.pod_uid, last.state AS true_state, last.pod_uid AS true_uid, last.at
      FROM allocations a {_LAST_EVENT}
     WHERE a.id = ANY($1::uuid[]) AND {_LIES}
)
UPDATE allocations a SET state = lying.true_state, pod_uid = lying.true_uid,
       ended_at = CASE WHEN lying.true_state
                            IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
                       THEN NULL ELSE coalesce(a.ended_at, lying.at) END
  FROM lying WHERE a.id = lying.id
RETURNING a.id::text AS id, a.namespace, a.pod_name, a.pod_uid, a.ended_at IS NULL AS live,
          format('the row had %s of pod %s, its last event %s of pod %s', lying.state,
                 lying.pod_uid, lying.true_state, lying.true_uid) AS detail
"""
_NO_PERIOD = "DELETE FROM allocation_periods WHERE allocation_id = ANY($1::uuid[])"
_LAST_MOVE = """
SELECT detail->'after' AS cards FROM allocation_events
 WHERE allocation_id = $1 AND detail ? 'after' ORDER BY sequence DESC LIMIT 1
"""
_INSERT_SHARES = f"""
INSERT INTO allocation_devices ({SHARE_COLUMNS})
SELECT $1, {SHARE_VALUES}
  FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[],
              $8::int[], $9::int[], $10::int[], $11::text[], $12::jsonb[])
         AS s (container_index, position, container_name, role, device_uuid, vendor, memory_mib,
               core_percent, slots, type, detail)
"""
_DELETE_SHARES = "DELETE FROM allocation_devices WHERE allocation_id = $1"
_DELETE_CONTAINERS = "DELETE FROM allocation_containers WHERE allocation_id = $1"
_INSERT_CONTAINERS = """
INSERT INTO allocation_containers (allocation_id, container_index, name, role)
SELECT $1, c.* FROM unnest($2::smallint[], $3::text[], $4::text[]) AS c
"""
_RENAME = "UPDATE allocations SET node = $2, namespace = $3, pod_name = $4 WHERE id = $1"
# The containers' own rows are compared with the grant; here the slices follow them.
_NAMES = """
UPDATE allocation_devices x SET container_name = c.name, role = c.role
  FROM allocation_containers c, allocations a
 WHERE a.ended_at IS NULL AND c.allocation_id = a.id AND x.allocation_id = a.id
   AND x.container_index = c.container_index AND (x.container_name, x.role) <> (c.name, c.role)
RETURNING a.namespace, a.pod_name, a.pod_uid,
          format('a slice was of a container that the pod does not have; it is of %s', c.name)
              AS detail
"""
_DEADLINES = """
UPDATE allocations SET deadline = now()
 WHERE ended_at IS NULL AND state IN ('reserved', 'binding', 'releasing')
   AND (deadline > now() + make_interval(secs => $1)
        OR (deadline IS NULL AND state = 'releasing'))
RETURNING id::text AS id, namespace, pod_name, pod_uid, true AS live,
          format('it was to end in state %s on no day that comes soon; it is looked at now', state)
              AS detail
"""


@dataclass(eq=False)
class PostgresRowRepairs:
    """Repair rows by the history and other evidence."""

    database: Database
    on_commit: Callable[[], None]

    async def repair_by_history(self) -> list[RepairedRow]:
        """Set state and pod of live rows to those of their last event, where they differ."""
        found = [row["id"] for row in await self.database.fetch(_FIND)]
        return await self._by_history(found) if found else []

    async def put_back(self, allocation_id: AllocationId) -> list[RepairedRow]:
        """Repair one row, live or not, by its history; return it if it was changed."""
        return await self._by_history([allocation_id])

    async def _by_history(self, ids: Sequence[str]) -> list[RepairedRow]:
        async with self.database.transaction() as connection:
            await connection.fetch(_LOCK, list(ids))
            rows = await connection.fetch(_BY_HISTORY, list(ids))
            live = [row["id"] for row in rows if row["live"]]
            if live:
                await connection.execute(_NO_PERIOD, live)
        return [_repaired_row(row) for row in rows]

    async def repair_names(self) -> list[RepairedRow]:
        """Set name and role in slices of live grants to those of their container's row."""
        return [_repaired_row(row) for row in await self.database.fetch(_NAMES)]

    async def repair_deadlines(self, longest_s: float) -> list[RepairedRow]:
        """Set a deadline of now for states without one, or with one too far in the future."""
        return [_repaired_row(row) for row in await self.database.fetch(_DEADLINES, longest_s)]

    async def last_move(self, allocation_id: AllocationId) -> Mapping[str, Sequence[str]] | None:
        """Return the cards by container after the grant's last move; None: it was never moved."""
        row = await self.database.fetchrow(_LAST_MOVE, allocation_id)
        return None if row is None else row["cards"]

    async def rewrite(
        self,
        row: Allocation,
        *,
        node: NodeName,
        namespace: str,
        pod_name: str,
        containers: Sequence[ContainerGrant],
        reason: str,
    ) -> bool:
        """Rewrite the row's node, names and parts, with an event.

        Return False without a change if the row has changed since. `CounterRepairer` repairs the
        counters of its cards (`reconcile/lying_rows.py`).
        """
        async with self.database.transaction() as connection:
            old = await lock_allocation(connection, row.id)
            if old != row:
                return False
            await connection.execute(_RENAME, row.id, node, namespace, pod_name)
            await connection.execute(_DELETE_CONTAINERS, row.id)
            await connection.execute(
                _INSERT_CONTAINERS,
                row.id,
                [each.index for each in containers],
                [each.name for each in containers],
                ["init" if each.role == "init" else "app" for each in containers],
            )
            await _write_shares(connection, row.id, containers)
            event = NewEvent(
                allocation_id=row.id,
                pod_uid=row.pod_uid,
                previous=row.state,
                state=row.state,
                reason=reason,
                actor="reconciler",
                detail={"before": _card_names(row.containers), "after": _card_names(containers)},
            )
            await insert_events(connection, [event])
        self.on_commit()
        return True


def _repaired_row(row: Any) -> RepairedRow:
    subject = f"{row['namespace']}/{row['pod_name']} ({row['pod_uid']})"
    return RepairedRow(subject=subject, detail=row["detail"])


async def _write_shares(
    connection: Connection, allocation_id: AllocationId, containers: Sequence[ContainerGrant]
) -> None:
    """Replace the allocation's slices."""
    await connection.execute(_DELETE_SHARES, allocation_id)
    await connection.execute(_INSERT_SHARES, allocation_id, *columns(share_rows(containers), 11))


def _card_names(containers: Sequence[ContainerGrant]) -> dict[str, list[str]]:
    """Return the cards' ids by container name."""
    return {c.name: [share.uuid for share in c.shares] for c in containers if c.shares}


_NEW_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# No card changes so often that its version is a year ahead of its time.
_TOO_FAR = f"least({_NEW_VERSION} + 31536000000, {MAX_VERSION // 2})"

_HELD = f"""
WITH footprints AS (
    SELECT x.device_uuid, x.allocation_id, {footprint("slots")} AS slots,
           {footprint("memory_mib")} AS memory_mib, {footprint("core_percent")} AS core_percent,
           jsonb_agg(jsonb_build_object(
                         'role', CASE WHEN x.sidecar THEN 'sidecar' ELSE x.role END,
                         'detail', x.detail)
                     || CASE a.state WHEN 'reserved' THEN '{{"room": true}}'::jsonb
                        ELSE '{{}}'::jsonb END
                     ORDER BY x.container_index, x.position)
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
_FIND_CARDS = f"""
{_HELD}
SELECT d.uuid FROM devices d JOIN held h ON h.uuid = d.uuid
 WHERE {_DIFFERS}
   AND NOT EXISTS (SELECT FROM allocations a
                    WHERE a.node = d.node AND a.ended_at IS NULL AND a.origin <> 'claim'
                      AND NOT EXISTS (SELECT FROM allocation_devices x
                                       WHERE x.allocation_id = a.id))
 ORDER BY d.uuid LIMIT 1000
"""
_LOCK_CARDS = "SELECT uuid FROM devices WHERE uuid = ANY($1::text[]) ORDER BY uuid FOR UPDATE"
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
RETURNING d.uuid, d.node, d.version < before.version AS is_older,
          format('it counted %s slots, %s memory, %s cores; its live grants are %s, %s, %s',
                 before.used_slots, before.used_memory_mib, before.used_core_percent,
                 h.slots, h.memory_mib, h.core_percent) AS detail
"""
_REPAIR_NUMBERS = "SELECT name, was, is_now FROM hami_repair_numbers()"


class PostgresCounters:
    """Compare counters of cards, and sequences, with the rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def repair_cards(self) -> list[RepairedCard]:
        """Recompute the counters of cards that differ from their live grants."""
        found = [row["uuid"] for row in await self._database.fetch(_FIND_CARDS, None)]
        if not found:
            return []
        async with self._database.transaction() as connection:
            await connection.fetch(_LOCK_CARDS, found)
            rows = await connection.fetch(_REPAIR, found)
        return [RepairedCard(**dict(row)) for row in rows]

    async def repair_sequences(self) -> list[RepairedRow]:
        """Advance sequences beyond the newest rows."""
        rows = await self._database.fetch(_REPAIR_NUMBERS)
        went = "it was at {was}, and continues from {is_now}"
        return [RepairedRow(subject=row["name"], detail=went.format(**dict(row))) for row in rows]
