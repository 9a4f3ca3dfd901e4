"""Nodes and cards in Postgres: written from reports, read for the cluster's state.

A capacity may decrease at any time: if it falls below the use, the ceiling rises to the use
(architecture 2.1), and such a card gets no new grants because grants are guarded by capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName, card_key
from hamicommon.events import DeviceHealthEvent, event_subject
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.ledger.inventory_diff import (
    MAX_CARDS,
    HealthChange,
    InventoryChanges,
    KnownCard,
    compare,
    key_cards,
    screen,
)
from hami_scheduler.ports.ledger import AgentInventory, LedgerCard, PairScores, RecordedInventory

_HOLDINGS = "jsonb_path_query_array(holdings, '$.*[*].detail')"
"""Details of all live slices in a row of `devices`."""
# In the order of names: two writers never wait for each other.
# Two runs of a node's agent are ordered by when the bus took their reports, never by the node's
# clock; a date in the future is none (a bus that was restored, a row of an older version).
# An agent's node is taken over only when its Node object was deleted since.
_UPSERT_NODES = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
SELECT r.name, 'agent', r.agent_id, r.agent_sequence, r.inventory_at, r.pair_scores
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::jsonb[])
       AS r(name, agent_id, agent_sequence, inventory_at, pair_scores)
 ORDER BY r.name
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
_FORGET_NUMBER = """
UPDATE nodes n SET agent_sequence = 0
  FROM (SELECT name, agent_sequence FROM nodes WHERE name = $1 FOR NO KEY UPDATE) AS before
 WHERE n.name = before.name
RETURNING before.agent_sequence
"""
_UPSERT_ANNOTATED = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
VALUES ($1, 'annotation', $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET source = 'annotation', agent_id = excluded.agent_id,
       agent_sequence = excluded.agent_sequence, inventory_at = excluded.inventory_at,
       pair_scores = CASE WHEN $6 THEN nodes.pair_scores ELSE excluded.pair_scores END,
       gone_at = NULL
 WHERE (nodes.source = 'annotation' OR nodes.gone_at IS NOT NULL
        OR nodes.agent_id = excluded.agent_id)
   AND (nodes.agent_id <> excluded.agent_id OR nodes.agent_sequence <= excluded.agent_sequence
        OR nodes.inventory_at IS NULL
        OR nodes.inventory_at NOT BETWEEN excluded.inventory_at - interval '3 minutes'
                                      AND now() + interval '5 seconds')
RETURNING name
"""
# No agent has the uid of the Node object for its own id: such a row was written here, and lies.
# A version of the Node object that no later one came after for minutes is not believed.
_SELECT_CARDS = f"""
SELECT d.uuid, d.node, d.vendor, d.index, d.type, d.slots, d.memory_mib, d.core_percent,
       d.used_slots, d.used_memory_mib, d.used_core_percent, d.numa, d.mode, d.healthy,
       d.health_reason, d.cordoned, d.present, d.mig_profiles, d.info, d.version,
       {_HOLDINGS} AS holdings
  FROM devices d
"""
# The agent's report of its cards, without their grants.
_SELECT_REPORTED = """
SELECT uuid, node, vendor, index, type, slots, memory_mib, core_percent, numa, mode, healthy,
       health_reason, present, mig_profiles, info
  FROM devices WHERE node = ANY($1::text[])
"""
# An absent card that no pod of another node holds belongs to this node.
_GRANTED_ELSEWHERE = """
SELECT DISTINCT x.device_uuid AS uuid
  FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
 WHERE x.device_uuid = ANY($2::text[]) AND a.ended_at IS NULL AND a.node <> $1
"""
_NAMES_OF_NODE = "SELECT uuid FROM devices WHERE node = $1"
# An added card has a higher version than any removed one, so that the sum of versions
# shows a view that one replaced another.
_NEW_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_INSERT_CARD = f"""
INSERT INTO devices (uuid, node, index, vendor, type, slots, memory_mib, core_percent,
                     ceiling_slots, ceiling_memory_mib, ceiling_core_percent, numa, mode, healthy,
                     health_reason, mig_profiles, info, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $6, $7, $8, $9, $10, $11, $12, $13, $14, {_NEW_VERSION})
"""
_UPDATE_CARD = f"""
UPDATE devices SET node = $2, index = $3, vendor = $4, type = $5, slots = $6, memory_mib = $7,
       core_percent = $8, ceiling_slots = greatest($6, used_slots),
       ceiling_memory_mib = greatest($7, used_memory_mib),
       ceiling_core_percent = greatest($8, used_core_percent), numa = $9, mode = $10,
       healthy = $11, health_reason = $12, mig_profiles = $13, info = $14,
       present = $15,
       version = CASE WHEN $15 AND NOT present THEN greatest(version + 1, {_NEW_VERSION})
                      ELSE version + 1 END,
       updated_at = now()
 WHERE uuid = $1
"""
# All changes of a node in one statement: a new node has one for each of its cards.
_HEALTH = """
WITH event AS (
  INSERT INTO device_health_events (node, device_uuid, healthy, reason)
  SELECT $1, c.uuid, c.healthy, c.reason
    FROM unnest($2::text[], $3::boolean[], $4::text[]) WITH ORDINALITY
         AS c(uuid, healthy, reason, position)
   ORDER BY c.position
  RETURNING id, device_uuid, healthy, reason, at
), announced AS (
  INSERT INTO outbox (subject, payload)
  SELECT CASE WHEN healthy THEN $5 ELSE $6 END,
         jsonb_build_object('version', 1, 'event_id', id, 'node', $1::text, 'uuid', device_uuid,
                            'healthy', healthy, 'reason', reason, 'at', at)
    FROM event ORDER BY id
), woken AS (
  SELECT pg_notify('hami_outbox', '')
)
SELECT id AS event_id, device_uuid AS uuid, healthy, reason, at FROM event, woken ORDER BY id
"""
_CORDON = """
UPDATE devices SET cordoned = (uuid = ANY($2::text[])), version = version + 1, updated_at = now()
 WHERE node = $1 AND cordoned <> (uuid = ANY($2::text[]))
RETURNING uuid
"""
_SET_NODE = """
UPDATE nodes SET node_group = $2, unschedulable = $3
 WHERE name = $1 AND (node_group IS DISTINCT FROM $2 OR unschedulable <> $3)
"""
_GONE = """
UPDATE nodes SET gone_at = now() WHERE name = $1 AND gone_at IS NULL RETURNING name
"""


@dataclass(eq=False)
class PostgresInventory:
    """Store of nodes and cards."""

    database: Database
    on_commit: Callable[[], None]

    async def record_all(
        self, reports: Sequence[AgentInventory]
    ) -> Sequence[RecordedInventory | None]:
        """Write the changes in reports of different nodes, all or none.

        None for a report that is older than the known one. The row of a node is written first, so
        that no other transaction writes its cards until the end, and unchanged cards need no lock.
        Raises: Conflict, Unavailable.
        """
        if not reports:
            return []
        recorded: dict[NodeName, RecordedInventory] = {}
        async with self.database.transaction() as connection:
            accepted = await _upsert_nodes(connection, reports)
            current = await _cards_of(connection, accepted)
            for report in sorted(reports, key=lambda each: each.inventory.node):
                inventory = report.inventory
                if inventory.node not in accepted:
                    continue
                known = current.get(inventory.node, {})
                if _repeats(known, inventory):
                    recorded[inventory.node] = RecordedInventory(changed=False)
                else:
                    recorded[inventory.node] = await self._bring_up_to_date(connection, inventory)
        if any(each.changed for each in recorded.values()):
            self.on_commit()
        return [recorded.get(report.inventory.node) for report in reports]

    async def forget_number(self, node: NodeName) -> int | None:
        """Forget the number of the agent's last report, so that the next one is accepted.

        Returns the number; None: the node is not known. Raises: Unavailable.
        """
        row = await self.database.fetchrow(_FORGET_NUMBER, node)
        return None if row is None else int(row["agent_sequence"])

    async def _bring_up_to_date(
        self, connection: Connection, inventory: NodeInventory, keep: frozenset[str] = frozenset()
    ) -> RecordedInventory:
        """Write the cards of the report, except those of vendors in `keep`."""
        known, holders = await self._fetch_cards(connection, inventory)
        screened = screen(inventory.devices, holders)
        known = {uuid: card for uuid, card in known.items() if card.device.vendor not in keep}
        changes = compare(known, screened.accepted)
        health = await _write(connection, inventory.node, changes)
        return RecordedInventory(changed=not changes.empty, health=health, refused=screened.refused)

    async def record_annotated(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> RecordedInventory | None:
        """Write the cards of a Node object whose node has no agent of ours.

        Cards of the vendors in `keep`, and then the pair scores too, stay as they are. None when
        the node's own agent reports, or a later state is known already: `sequence` grows within
        one `node_uid`. Raises: Unavailable.
        """
        async with self.database.transaction() as connection:
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
            names = await connection.fetch(_NAMES_OF_NODE, inventory.node)
            inventory = key_cards(inventory, [row["uuid"] for row in names])
            recorded = await self._bring_up_to_date(connection, inventory, keep)
        self.on_commit()
        return recorded

    async def _fetch_cards(
        self, connection: Connection, inventory: NodeInventory
    ) -> tuple[dict[GpuUuid, KnownCard], dict[GpuUuid, NodeName]]:
        """Return cards of this node, with those it takes over, and conflicting ones of others."""
        rows = await connection.fetch(
            f"{_SELECT_CARDS} WHERE d.node = $1 OR d.uuid = ANY($2::text[])"
            " ORDER BY d.uuid FOR UPDATE",
            inventory.node,
            [device.uuid for device in inventory.devices],
        )
        elsewhere = {row["uuid"] for row in rows if row["node"] != inventory.node}
        granted = (
            await connection.fetch(_GRANTED_ELSEWHERE, inventory.node, sorted(elsewhere))
            if elsewhere
            else ()
        )
        held = {row["uuid"] for row in granted}
        holders = {
            GpuUuid(row["uuid"]): NodeName(row["node"])
            for row in rows
            if row["uuid"] in elsewhere and (row["present"] or row["uuid"] in held)
        }
        return _known_cards(row for row in rows if row["uuid"] not in holders), holders

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """Cordon exactly these cards of the node; return whether something changed."""
        names = uuids | {card_key(node, uuid) for uuid in uuids}
        return bool(await self.database.fetch(_CORDON, node, sorted(names)))

    async def set_node(self, node: NodeName, *, group: str | None, unschedulable: bool) -> None:
        """Write group and cordon of the Node object, if the ledger has the node.

        Raises: Unavailable.
        """
        await self.database.fetch(_SET_NODE, node, group, unschedulable)

    async def mark_gone(self, node: NodeName) -> None:
        """Mark the cards of a deleted Node as absent."""
        async with self.database.transaction() as connection:
            if await connection.fetchrow(_GONE, node) is None:
                return
            rows = await connection.fetch(
                f"{_SELECT_CARDS} WHERE d.node = $1 ORDER BY d.uuid FOR UPDATE", node
            )
            await _write(connection, node, compare(_known_cards(rows), ()))
        self.on_commit()

    async def tally(self) -> tuple[int, int]:
        """Return the number of present cards and the sum of their versions."""
        row = await self.database.fetchrow(
            # As numeric: what one row has wrong must not be beyond the sum's type.
            "SELECT count(*), coalesce(sum(version), 0) FROM devices WHERE present"
        )
        return int(row[0]), int(row[1])

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """Return card uuid -> (node, version) of every present card."""
        rows = await self.database.fetch("SELECT uuid, node, version FROM devices WHERE present")
        return {row[0]: (NodeName(row[1]), row[2]) for row in rows}

    async def agent_marks(self) -> dict[NodeName, tuple[str, int]]:
        """Return the mark of every node with an agent. Raises: Unavailable."""
        rows = await self.database.fetch(
            "SELECT name, agent_id, agent_sequence FROM nodes"
            " WHERE source = 'agent' AND gone_at IS NULL"
        )
        return {NodeName(row[0]): (row[1], row[2]) for row in rows}

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """Return cards of these nodes, or of all, ordered by node and index."""
        rows = await self.database.fetch(
            f"{_SELECT_CARDS} WHERE d.present AND ($1::text[] IS NULL OR d.node = ANY($1))"
            " ORDER BY d.node, d.index",
            None if nodes is None else list(nodes),
        )
        return [_ledger_card(row) for row in rows]

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """Return the connection scores of these nodes' cards, where measured."""
        rows = await self.database.fetch(
            "SELECT name, pair_scores FROM nodes WHERE name = ANY($1::text[])"
            " AND pair_scores <> '{}'::jsonb",
            list(nodes),
        )
        return {NodeName(row["name"]): row["pair_scores"] for row in rows}


def _known_cards(rows: Iterable[Any]) -> dict[GpuUuid, KnownCard]:
    return {
        GpuUuid(row["uuid"]): KnownCard(device=_device_of(row), present=row["present"])
        for row in rows
    }


async def _upsert_nodes(
    connection: Connection, reports: Sequence[AgentInventory]
) -> frozenset[NodeName]:
    """Write nodes, and return those whose report is the newest."""
    rows = await connection.fetch(
        _UPSERT_NODES,
        [each.inventory.node for each in reports],
        [each.agent_id for each in reports],
        [each.sequence for each in reports],
        [each.inventory.observed_at for each in reports],
        [each.inventory.pair_scores for each in reports],
    )
    return frozenset(NodeName(row["name"]) for row in rows)


async def _cards_of(
    connection: Connection, nodes: frozenset[NodeName]
) -> Mapping[NodeName, Mapping[GpuUuid, KnownCard]]:
    rows = await connection.fetch(_SELECT_REPORTED, sorted(nodes)) if nodes else ()
    by_node = sorted(rows, key=itemgetter("node"))
    return {
        NodeName(node): _known_cards(some) for node, some in groupby(by_node, itemgetter("node"))
    }


def _repeats(known: Mapping[GpuUuid, KnownCard], inventory: NodeInventory) -> bool:
    """Return whether the ledger already has exactly these cards."""
    once = len({device.uuid for device in inventory.devices}) == len(inventory.devices)
    return once and len(known) <= MAX_CARDS and compare(known, inventory.devices).empty


async def _write(
    connection: Connection, node: NodeName, changes: InventoryChanges
) -> tuple[DeviceHealthEvent, ...]:
    if changes.inserts:
        await connection.executemany(
            _INSERT_CARD, [_card_columns(node, card) for card in changes.inserts]
        )
    if changes.updates:
        await connection.executemany(
            _UPDATE_CARD,
            [(*_card_columns(node, card.device), card.present) for card in changes.updates],
        )
    return await _record_health(connection, node, changes.health) if changes.health else ()


async def _record_health(
    connection: Connection, node: NodeName, changes: Sequence[HealthChange]
) -> tuple[DeviceHealthEvent, ...]:
    rows = await connection.fetch(
        _HEALTH,
        node,
        [change.uuid for change in changes],
        [change.healthy for change in changes],
        [change.reason for change in changes],
        event_subject("device", "recovered"),
        event_subject("device", "failed"),
    )
    return tuple(DeviceHealthEvent(node=node, **dict(row)) for row in rows)


_DEVICE_COLUMNS = (
    *("uuid", "index", "vendor", "type", "slots", "memory_mib", "core_percent", "numa", "mode"),
    *("healthy", "health_reason", "info"),
)


def _card_columns(node: NodeName, device: GpuDevice) -> tuple[Any, ...]:
    columns = (device.uuid, node, *(getattr(device, name) for name in _DEVICE_COLUMNS[1:-1]))
    return (*columns, [asdict(profile) for profile in device.mig_profiles], dict(device.info))


def _ledger_card(row: Any) -> LedgerCard:
    """Decode a row of `SELECT_CARDS`, with granted amounts."""
    return LedgerCard(
        node=NodeName(row["node"]),
        version=row["version"],
        usage=DeviceUsage(
            device=_device_of(row),
            used_slots=row["used_slots"],
            used_memory_mib=row["used_memory_mib"],
            used_core_percent=row["used_core_percent"],
            cordoned=row["cordoned"],
            holdings=tuple(row["holdings"]),
        ),
    )


def _device_of(row: Any) -> GpuDevice:
    plain = {name: row[name] for name in _DEVICE_COLUMNS}
    return GpuDevice(**plain, mig_profiles=_mig_profiles(row["mig_profiles"]))


_UNREADABLE = (
    MigProfile(name="unreadable", memory_mib=0, core_percent=0, slice_count=0, placements=()),
)
"""Placeholder for an unreadable card, which differs from every report so that it is rewritten."""


def _mig_profiles(items: Sequence[Any]) -> tuple[MigProfile, ...]:
    try:
        return tuple(
            MigProfile(
                **{**item, "placements": tuple((start, size) for start, size in item["placements"])}
            )
            for item in items
        )
    except (TypeError, ValueError, KeyError):
        return _UNREADABLE
