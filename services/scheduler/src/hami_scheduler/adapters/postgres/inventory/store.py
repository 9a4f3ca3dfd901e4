"""Nodes and cards in Postgres: written from reports, read for the view.

Capacity may be written down at any time: the ceiling rises to what is used when it shrinks below
(architecture 2.1), and such a card gets no new grants because grants are guarded by
capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName, card_key
from hamicommon.events import DeviceHealthEvent, event_subject
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.adapters.postgres.inventory.card_rows import (
    card_columns,
    device_of,
    ledger_card,
)
from hami_scheduler.adapters.postgres.inventory.statements import (
    CORDON,
    FORGET_NUMBER,
    GONE,
    GRANTED_ELSEWHERE,
    HEALTH,
    HEARD_NODES,
    INSERT_CARD,
    NAMES_OF_NODE,
    SELECT_CARDS,
    SELECT_REPORTED,
    SET_GROUPS,
    UPDATE_CARD,
    UPSERT_ANNOTATED,
    UPSERT_NODES,
)
from hami_scheduler.ledger.inventory_diff import (
    MOST_CARDS,
    HealthChange,
    InventoryChanges,
    KnownCard,
    compare,
    keyed,
    screen,
)
from hami_scheduler.ports.ledger import AgentInventory, LedgerCard, PairScores, RecordedInventory


@dataclass(eq=False)
class PostgresInventory:
    """Ports InventoryStore, InventoryStore and CardReader."""

    database: Database
    _: KW_ONLY
    on_commit: Callable[[], None]

    async def record(
        self, inventory: NodeInventory, *, agent_id: str, sequence: int
    ) -> RecordedInventory | None:
        """See the port."""
        report = AgentInventory(inventory=inventory, agent_id=agent_id, sequence=sequence)
        [recorded] = await self.record_all([report])
        return recorded

    async def record_all(
        self, reports: Sequence[AgentInventory]
    ) -> Sequence[RecordedInventory | None]:
        """See the port.

        The row of a node is written first, so that nobody else writes its cards until the end, and
        cards that are as reported need no lock of their own.
        """
        recorded: dict[NodeName, RecordedInventory] = {}
        whole = [each for each in reports if not each.repeats]
        async with self.database.transaction() as connection:
            for node in await _heard(connection, [each for each in reports if each.repeats]):
                recorded[node] = RecordedInventory(changed=False)
            accepted = await _upsert_nodes(connection, whole)
            current = await _cards_of(connection, accepted)
            for report in sorted(whole, key=lambda each: each.inventory.node):
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
        """See the port."""
        row = await self.database.fetchrow(FORGET_NUMBER, node)
        return None if row is None else int(row["agent_sequence"])

    async def _bring_up_to_date(
        self, connection: Connection, inventory: NodeInventory
    ) -> RecordedInventory:
        known, holders = await self._known(connection, inventory)
        screened = screen(inventory.devices, holders)
        changes = compare(known, screened.accepted)
        health = await _write(connection, inventory.node, changes)
        return RecordedInventory(changed=not changes.empty, health=health, refused=screened.refused)

    async def record_annotated(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> RecordedInventory | None:
        """See the port."""
        async with self.database.transaction() as connection:
            accepted = await connection.fetchrow(
                UPSERT_ANNOTATED,
                inventory.node,
                node_uid,
                sequence,
                inventory.observed_at,
                inventory.pair_scores,
                bool(keep),
            )
            if accepted is None:
                return None
            names = await connection.fetch(NAMES_OF_NODE, inventory.node)
            inventory = keyed(inventory, [row["uuid"] for row in names])
            known, holders = await self._known(connection, inventory)
            screened = screen(inventory.devices, holders)
            annotated = {
                uuid: card for uuid, card in known.items() if card.device.vendor not in keep
            }
            changes = compare(annotated, screened.accepted)
            health = await _write(connection, inventory.node, changes)
        self.on_commit()
        return RecordedInventory(changed=not changes.empty, health=health, refused=screened.refused)

    async def _known(
        self, connection: Connection, inventory: NodeInventory
    ) -> tuple[dict[GpuUuid, KnownCard], dict[GpuUuid, NodeName]]:
        """This node's cards (those that it takes over included), and what other nodes have."""
        rows = await connection.fetch(
            f"{SELECT_CARDS} WHERE d.node = $1 OR d.uuid = ANY($2::text[])"
            " ORDER BY d.uuid FOR UPDATE",
            inventory.node,
            [device.uuid for device in inventory.devices],
        )
        elsewhere = {row["uuid"] for row in rows if row["node"] != inventory.node}
        granted = (
            await connection.fetch(GRANTED_ELSEWHERE, inventory.node, sorted(elsewhere))
            if elsewhere
            else ()
        )
        held = {row["uuid"] for row in granted}
        holders = {
            GpuUuid(row["uuid"]): NodeName(row["node"])
            for row in rows
            if row["uuid"] in elsewhere and (row["present"] or row["uuid"] in held)
        }
        known = {
            GpuUuid(row["uuid"]): KnownCard(device=device_of(row), present=row["present"])
            for row in rows
            if row["uuid"] not in holders
        }
        return known, holders

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """See the port."""
        names = uuids | {card_key(node, uuid) for uuid in uuids}
        return bool(await self.database.fetch(CORDON, node, sorted(names)))

    async def set_groups(self, groups: Mapping[NodeName, str | None]) -> Collection[NodeName]:
        """See the port."""
        names = sorted(groups)
        rows = await self.database.fetch(SET_GROUPS, names, [groups[name] for name in names])
        return [NodeName(row["name"]) for row in rows]

    async def mark_gone(self, node: NodeName) -> None:
        """See the port."""
        async with self.database.transaction() as connection:
            if await connection.fetchrow(GONE, node) is None:
                return
            rows = await connection.fetch(
                f"{SELECT_CARDS} WHERE d.node = $1 ORDER BY d.uuid FOR UPDATE", node
            )
            known = {
                GpuUuid(row["uuid"]): KnownCard(device=device_of(row), present=row["present"])
                for row in rows
            }
            await _write(connection, node, compare(known, ()))
        self.on_commit()

    async def tally(self) -> tuple[int, int]:
        """See the port."""
        row = await self.database.fetchrow(
            # As numeric: what one row has wrong must not be beyond the sum's type.
            "SELECT count(*), coalesce(sum(version), 0) FROM devices WHERE present"
        )
        return int(row[0]), int(row[1])

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """See the port."""
        rows = await self.database.fetch("SELECT uuid, node, version FROM devices WHERE present")
        return {row[0]: (NodeName(row[1]), row[2]) for row in rows}

    async def agent_marks(self) -> dict[NodeName, tuple[str, int]]:
        """See bus.heartbeats.CardReader."""
        rows = await self.database.fetch(
            "SELECT name, agent_id, agent_sequence FROM nodes"
            " WHERE source = 'agent' AND gone_at IS NULL"
        )
        return {NodeName(row[0]): (row[1], row[2]) for row in rows}

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """See the port."""
        rows = await self.database.fetch(
            f"{SELECT_CARDS} WHERE d.present AND ($1::text[] IS NULL OR d.node = ANY($1))"
            " ORDER BY d.node, d.index",
            None if nodes is None else list(nodes),
        )
        return [ledger_card(row) for row in rows]

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """See the port."""
        rows = await self.database.fetch(
            "SELECT name, pair_scores FROM nodes WHERE name = ANY($1::text[])"
            " AND pair_scores <> '{}'::jsonb",
            list(nodes),
        )
        return {NodeName(row["name"]): row["pair_scores"] for row in rows}


async def _heard(connection: Connection, reports: Sequence[AgentInventory]) -> frozenset[NodeName]:
    """The nodes of which this was recorded; each is in `reports` once."""
    if not reports:
        return frozenset()
    rows = await connection.fetch(
        HEARD_NODES,
        [each.inventory.node for each in reports],
        [each.agent_id for each in reports],
        [each.sequence for each in reports],
        [each.inventory.observed_at for each in reports],
    )
    return frozenset(NodeName(row["name"]) for row in rows)


async def _upsert_nodes(
    connection: Connection, reports: Sequence[AgentInventory]
) -> frozenset[NodeName]:
    """The nodes whose report is the newest; each is in `reports` once."""
    if not reports:
        return frozenset()
    rows = await connection.fetch(
        UPSERT_NODES,
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
    rows = await connection.fetch(SELECT_REPORTED, sorted(nodes)) if nodes else ()
    found: dict[NodeName, dict[GpuUuid, KnownCard]] = {}
    for row in rows:
        device = device_of(row)
        cards = found.setdefault(NodeName(row["node"]), {})
        cards[device.uuid] = KnownCard(device=device, present=row["present"])
    return found


def _repeats(known: Mapping[GpuUuid, KnownCard], inventory: NodeInventory) -> bool:
    """Whether the ledger has all of it: each card once, and as it is."""
    once = len({device.uuid for device in inventory.devices}) == len(inventory.devices)
    return once and len(known) <= MOST_CARDS and compare(known, inventory.devices).empty


async def _write(
    connection: Connection, node: NodeName, changes: InventoryChanges
) -> tuple[DeviceHealthEvent, ...]:
    if changes.inserts:
        await connection.executemany(
            INSERT_CARD, [card_columns(node, card) for card in changes.inserts]
        )
    if changes.updates:
        await connection.executemany(
            UPDATE_CARD,
            [(*card_columns(node, card.device), card.present) for card in changes.updates],
        )
    return await _record_health(connection, node, changes.health) if changes.health else ()


async def _record_health(
    connection: Connection, node: NodeName, changes: Sequence[HealthChange]
) -> tuple[DeviceHealthEvent, ...]:
    rows = await connection.fetch(
        HEALTH,
        node,
        [change.uuid for change in changes],
        [change.healthy for change in changes],
        [change.reason for change in changes],
        event_subject("device", "recovered"),
        event_subject("device", "failed"),
    )
    return tuple(
        DeviceHealthEvent(
            event_id=row["id"],
            node=node,
            uuid=row["device_uuid"],
            healthy=row["healthy"],
            reason=row["reason"],
            at=row["at"],
        )
        for row in rows
    )
