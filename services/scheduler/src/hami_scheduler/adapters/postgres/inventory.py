"""Nodes and cards in Postgres: written from reports, read for the view.

Capacity may be written down at any time: the ceiling rises to what is used when it shrinks below
(architecture 2.1), and such a card gets no new grants because grants are guarded by
capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.events import DeviceHealthEvent, event_subject
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.adapters.postgres.rows import HOLDINGS
from hami_scheduler.ledger.inventory_diff import (
    HealthChange,
    InventoryChanges,
    KnownCard,
    compare,
    screen,
)
from hami_scheduler.ports import LedgerCard, PairScores, RecordedInventory

_UPSERT_NODE = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
VALUES ($1, 'agent', $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET source = 'agent', agent_id = excluded.agent_id,
       agent_sequence = excluded.agent_sequence, inventory_at = excluded.inventory_at,
       pair_scores = excluded.pair_scores, gone_at = NULL
 WHERE (nodes.agent_id = excluded.agent_id AND nodes.agent_sequence < excluded.agent_sequence)
    OR nodes.source = 'annotation'
    OR (nodes.agent_id <> excluded.agent_id
        AND (nodes.inventory_at IS NULL OR nodes.inventory_at <= excluded.inventory_at
             OR nodes.inventory_at > now() + interval '5 seconds'))
RETURNING name
"""
# Two runs of a node's agent are ordered by when the bus took their reports, never by the node's
# clock; a date in the future is none (a bus that was restored, a row of an older version).
# An agent's node is taken over only when its Node object was deleted since.
_UPSERT_ANNOTATED = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
VALUES ($1, 'annotation', $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET source = 'annotation', agent_id = excluded.agent_id,
       agent_sequence = excluded.agent_sequence, inventory_at = excluded.inventory_at,
       pair_scores = CASE WHEN $6 THEN nodes.pair_scores ELSE excluded.pair_scores END,
       gone_at = NULL
 WHERE (nodes.source = 'annotation' OR nodes.gone_at IS NOT NULL)
   AND (nodes.agent_id <> excluded.agent_id OR nodes.agent_sequence <= excluded.agent_sequence)
RETURNING name
"""
_SELECT_CARDS = f"""
SELECT d.uuid, d.node, d.vendor, d.index, d.type, d.slots, d.memory_mib, d.core_percent,
       d.used_slots, d.used_memory_mib, d.used_core_percent, d.numa, d.mode, d.healthy,
       d.health_reason, d.cordoned, d.present, d.mig_profiles, d.info, d.version,
       {HOLDINGS} AS holdings
  FROM devices d
"""
# A card that enters has a higher version than any that left, so that the sum of versions
# shows a view that one took another's place.
_FRESH_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_INSERT_CARD = f"""
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
                     ceiling_slots, ceiling_memory_mib, ceiling_core_percent, numa, mode, healthy,
                     health_reason, mig_profiles, info, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $6, $7, $8, $9, $10, $11, $12, $13, $14, {_FRESH_VERSION})
"""
_UPDATE_CARD = f"""
UPDATE devices SET node = $2, vendor = $3, index = $4, type = $5, slots = $6, memory_mib = $7,
       core_percent = $8, ceiling_slots = greatest($6, used_slots),
       ceiling_memory_mib = greatest($7, used_memory_mib),
       ceiling_core_percent = greatest($8, used_core_percent), numa = $9, mode = $10,
       healthy = $11, health_reason = $12, mig_profiles = $13, info = $14,
       present = $15,
       version = CASE WHEN $15 AND NOT present THEN greatest(version + 1, {_FRESH_VERSION})
                      ELSE version + 1 END,
       updated_at = now()
 WHERE uuid = $1
"""
_HEALTH = """
WITH event AS (
  INSERT INTO device_health_events (node, device_uuid, healthy, reason) VALUES ($1, $2, $3, $4)
  RETURNING id, at
), announced AS (
  INSERT INTO outbox (subject, payload)
  SELECT $5, jsonb_build_object('version', 1, 'event_id', id, 'node', $1::text, 'uuid', $2::text,
                                'healthy', $3::boolean, 'reason', $4::text, 'at', at)
    FROM event
)
SELECT id, at, pg_notify('hami_outbox', '') FROM event
"""
_CORDON = """
UPDATE devices SET cordoned = (uuid = ANY($2::text[])), version = version + 1, updated_at = now()
 WHERE node = $1 AND cordoned <> (uuid = ANY($2::text[]))
RETURNING uuid
"""
_GONE = """
UPDATE nodes SET gone_at = now() WHERE name = $1 AND gone_at IS NULL RETURNING name
"""


class PostgresInventory:
    """Ports InventoryStore and CardReader."""

    def __init__(self, database: Database, *, on_commit: Callable[[], None]) -> None:
        self._database = database
        self._on_commit = on_commit

    async def record(
        self, inventory: NodeInventory, *, agent_id: str, sequence: int
    ) -> RecordedInventory | None:
        """See the port."""
        async with self._database.transaction() as connection:
            accepted = await connection.fetchrow(
                _UPSERT_NODE,
                inventory.node,
                agent_id,
                sequence,
                inventory.observed_at,
                inventory.pair_scores,
            )
            if accepted is None:
                return None
            known, holders = await self._known(connection, inventory)
            screened = screen(inventory.devices, holders)
            changes = compare(known, screened.accepted)
            health = await _write(connection, inventory.node, changes)
        self._on_commit()
        return RecordedInventory(changed=not changes.empty, health=health, refused=screened.refused)

    async def record_annotated(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> RecordedInventory | None:
        """See the port."""
        async with self._database.transaction() as connection:
            accepted = await connection.fetchrow(
                _UPSERT_ANNOTATED,
                inventory.node,
                node_uid,
                sequence,
                inventory.observed_at,
                inventory.pair_scores,
                bool(keep),
            )
            if accepted is None:
                return None
            known, holders = await self._known(connection, inventory)
            screened = screen(inventory.devices, holders)
            annotated = {
                uuid: card for uuid, card in known.items() if card.device.vendor not in keep
            }
            changes = compare(annotated, screened.accepted)
            health = await _write(connection, inventory.node, changes)
        self._on_commit()
        return RecordedInventory(changed=not changes.empty, health=health, refused=screened.refused)

    async def _known(
        self, connection: Connection, inventory: NodeInventory
    ) -> tuple[dict[GpuUuid, KnownCard], dict[GpuUuid, NodeName]]:
        """This node's cards (those that it takes over included), and what other nodes have."""
        rows = await connection.fetch(
            f"{_SELECT_CARDS} WHERE d.node = $1 OR d.uuid = ANY($2::text[])"
            " ORDER BY d.uuid FOR UPDATE",
            inventory.node,
            [device.uuid for device in inventory.devices],
        )
        holders = {
            GpuUuid(row["uuid"]): NodeName(row["node"])
            for row in rows
            if row["node"] != inventory.node and (row["present"] or row["used_slots"])
        }
        known = {
            GpuUuid(row["uuid"]): KnownCard(device=_device(row), present=row["present"])
            for row in rows
            if row["uuid"] not in holders
        }
        return known, holders

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """See the port."""
        return bool(await self._database.fetch(_CORDON, node, sorted(uuids)))

    async def mark_gone(self, node: NodeName) -> None:
        """See the port."""
        async with self._database.transaction() as connection:
            if await connection.fetchrow(_GONE, node) is None:
                return
            rows = await connection.fetch(
                f"{_SELECT_CARDS} WHERE d.node = $1 ORDER BY d.uuid FOR UPDATE", node
            )
            known = {
                GpuUuid(row["uuid"]): KnownCard(device=_device(row), present=row["present"])
                for row in rows
            }
            await _write(connection, node, compare(known, ()))
        self._on_commit()

    async def tally(self) -> tuple[int, int]:
        """See the port."""
        row = await self._database.fetchrow(
            "SELECT count(*), coalesce(sum(version), 0)::bigint FROM devices WHERE present"
        )
        return int(row[0]), int(row[1])

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """See the port."""
        rows = await self._database.fetch("SELECT uuid, node, version FROM devices WHERE present")
        return {row[0]: (NodeName(row[1]), row[2]) for row in rows}

    async def agent_marks(self) -> dict[NodeName, tuple[str, int]]:
        """See bus.heartbeats.AgentMarks."""
        rows = await self._database.fetch(
            "SELECT name, agent_id, agent_sequence FROM nodes"
            " WHERE source = 'agent' AND gone_at IS NULL"
        )
        return {NodeName(row[0]): (row[1], row[2]) for row in rows}

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """See the port."""
        rows = await self._database.fetch(
            f"{_SELECT_CARDS} WHERE d.present AND ($1::text[] IS NULL OR d.node = ANY($1))"
            " ORDER BY d.node, d.index",
            None if nodes is None else list(nodes),
        )
        return [_ledger_card(row) for row in rows]

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """See the port."""
        rows = await self._database.fetch(
            "SELECT name, pair_scores FROM nodes WHERE name = ANY($1::text[])"
            " AND pair_scores <> '{}'::jsonb",
            list(nodes),
        )
        return {NodeName(row["name"]): row["pair_scores"] for row in rows}


async def _write(
    connection: Connection, node: NodeName, changes: InventoryChanges
) -> tuple[DeviceHealthEvent, ...]:
    if changes.inserts:
        await connection.executemany(
            _INSERT_CARD, [_columns(node, card) for card in changes.inserts]
        )
    if changes.updates:
        await connection.executemany(
            _UPDATE_CARD,
            [(*_columns(node, card.device), card.present) for card in changes.updates],
        )
    return tuple([await _record_health(connection, node, change) for change in changes.health])


async def _record_health(
    connection: Connection, node: NodeName, change: HealthChange
) -> DeviceHealthEvent:
    verb = "recovered" if change.healthy else "failed"
    row = await connection.fetchrow(
        _HEALTH, node, change.uuid, change.healthy, change.reason, event_subject("device", verb)
    )
    return DeviceHealthEvent(
        event_id=row["id"],
        node=node,
        uuid=change.uuid,
        healthy=change.healthy,
        reason=change.reason,
        at=row["at"],
    )


def _columns(node: NodeName, device: GpuDevice) -> tuple[Any, ...]:
    return (
        device.uuid,
        node,
        device.vendor,
        device.index,
        device.type,
        device.slots,
        device.memory_mib,
        device.core_percent,
        device.numa,
        device.mode,
        device.healthy,
        device.health_reason,
        [asdict(profile) for profile in device.mig_profiles],
        dict(device.info),
    )


def _ledger_card(row: Any) -> LedgerCard:
    return LedgerCard(
        node=NodeName(row["node"]),
        version=row["version"],
        usage=DeviceUsage(
            device=_device(row),
            used_slots=row["used_slots"],
            used_memory_mib=row["used_memory_mib"],
            used_core_percent=row["used_core_percent"],
            cordoned=row["cordoned"],
            holdings=tuple(row["holdings"]),
        ),
    )


def _device(row: Any) -> GpuDevice:
    return GpuDevice(
        uuid=GpuUuid(row["uuid"]),
        index=row["index"],
        vendor=row["vendor"],
        type=row["type"],
        slots=row["slots"],
        memory_mib=row["memory_mib"],
        core_percent=row["core_percent"],
        numa=row["numa"],
        mode=row["mode"],
        healthy=row["healthy"],
        health_reason=row["health_reason"],
        mig_profiles=tuple(_mig_profile(item) for item in row["mig_profiles"]),
        info=row["info"],
    )


def _mig_profile(item: dict[str, Any]) -> MigProfile:
    placements = tuple((start, size) for start, size in item["placements"])
    return MigProfile(**{**item, "placements": placements})
