"""Nodes and cards of the simulated database: as `PostgresInventory` has them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hami_scheduler.ledger.inventory_diff import HealthChange, KnownCard, compare
from hami_scheduler.ports.ledger import (
    AgentInventory,
    LedgerCard,
    PairScores,
    RecordedInventory,
    RepairedCard,
    RepairedRow,
)
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.devices import GpuDevice, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.events import DeviceHealthEvent, event_subject

from tests.fakes.ledger import FakeLedger
from tests.simulation.fake_time import wall_clock
from tests.simulation.stores.outbox import Outbox


@dataclass(slots=True)
class _Node:
    agent_id: str
    sequence: int
    observed_at: datetime
    gone: bool = False
    has_agent: bool = True


class Inventories(FakeLedger):
    """`FakeLedger` whose cards come from reports of nodes, as `PostgresInventory` takes them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"clock": wall_clock, **options})
        self.outbox = Outbox()
        self._nodes: dict[NodeName, _Node] = {}
        self._present: set[GpuUuid] = set()

    async def record(
        self, inventory: NodeInventory, *, agent_id: str, sequence: int
    ) -> RecordedInventory | None:
        """One of `record_all`."""
        node = self._nodes.get(inventory.node)
        if node is not None and node.has_agent:
            same = node.agent_id == agent_id
            if node.sequence >= sequence if same else node.observed_at > inventory.observed_at:
                return None
        self._know(inventory.node, _Node(agent_id, sequence, inventory.observed_at))
        health = self._bring_up_to_date(inventory.node, inventory.devices)
        return RecordedInventory(changed=bool(health), health=health)

    async def record_all(
        self, reports: Sequence[AgentInventory]
    ) -> Sequence[RecordedInventory | None]:
        """See PostgresInventory."""
        return [
            await self.record(each.inventory, agent_id=each.agent_id, sequence=each.sequence)
            for each in reports
        ]

    async def repair_cards(self) -> Sequence[RepairedCard]:
        """See PostgresCounters: the simulation's checker looks at every counter."""
        return ()

    async def repair_sequences(self) -> Sequence[RepairedRow]:
        """See PostgresCounters."""
        return ()

    async def repair_by_history(self) -> Sequence[RepairedRow]:
        """See PostgresRowRepairs: rows are right here."""
        return ()

    async def put_back(self, allocation_id: AllocationId) -> Sequence[RepairedRow]:
        """See PostgresRowRepairs."""
        del allocation_id
        return ()

    async def repair_names(self) -> Sequence[RepairedRow]:
        """See PostgresRowRepairs."""
        return ()

    async def repair_deadlines(self, longest_s: float) -> Sequence[RepairedRow]:
        """See PostgresRowRepairs."""
        del longest_s
        return ()

    async def last_move(self, allocation_id: AllocationId) -> Mapping[str, Sequence[str]] | None:
        """See PostgresRowRepairs: a row is where it was moved to."""
        row = self._allocations[allocation_id]
        return {each.name: [share.uuid for share in each.shares] for each in row.containers}

    async def rewrite(self, row: Allocation, **what: Any) -> bool:
        """See PostgresRowRepairs."""
        raise AssertionError(f"the row {row.id} is another than its grant: {what}")

    async def forget_number(self, node: NodeName) -> int | None:
        """See PostgresInventory."""
        known = self._nodes.get(node)
        if known is None:
            return None
        before, known.sequence = known.sequence, 0
        return before

    async def record_annotated(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> RecordedInventory | None:
        """See PostgresInventory."""
        node = self._nodes.get(inventory.node)
        if node is not None and (
            (node.has_agent and not node.gone)
            or (node.agent_id == node_uid and node.sequence > sequence)
        ):
            return None
        assert not keep, "no vendor reports its cards in here"
        self._know(
            inventory.node, _Node(node_uid, sequence, inventory.observed_at, has_agent=False)
        )
        before = self._version_sum(inventory.node)
        self._bring_up_to_date(inventory.node, inventory.devices)
        return RecordedInventory(changed=self._version_sum(inventory.node) != before)

    def _version_sum(self, node: NodeName) -> int:
        return sum(card.version for card in self._cards.values() if card.node == node)

    def _know(self, name: NodeName, node: _Node) -> None:
        """Update the node, and whether an agent reports it on each of its allocations."""
        self._nodes[name] = node
        for row in self._allocations.values():
            if row.node == name and row.has_agent != node.has_agent:
                self._allocations[row.id] = replace(row, has_agent=node.has_agent)

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """See PostgresInventory."""
        changed = False
        for uuid, card in self._cards.items():
            if card.node == node and card.is_cordoned != (uuid in uuids):
                card.is_cordoned, card.version, changed = uuid in uuids, card.version + 1, True
        return changed

    async def mark_gone(self, node: NodeName) -> None:
        """See PostgresInventory."""
        known = self._nodes.get(node)
        if known is not None and not known.gone:
            known.gone = True
            self._bring_up_to_date(node, ())

    def _bring_up_to_date(
        self, node: NodeName, devices: Sequence[GpuDevice]
    ) -> tuple[DeviceHealthEvent, ...]:
        known = {
            uuid: KnownCard(device=self._devices[uuid], present=uuid in self._present)
            for uuid, card in self._cards.items()
            if card.node == node
        }
        changes = compare(known, devices)
        for device in changes.inserts:
            self.add_card(node, device)
            self._present.add(device.uuid)
        for update in changes.updates:
            self.add_card(node, update.device, cordoned=self._cards[update.device.uuid].is_cordoned)
            (self._present.add if update.present else self._present.discard)(update.device.uuid)
        return tuple(self._health(node, change) for change in changes.health)

    def _health(self, node: NodeName, change: HealthChange) -> DeviceHealthEvent:
        event = DeviceHealthEvent(
            event_id=len(self.outbox.rows) + 1,
            node=node,
            uuid=change.uuid,
            healthy=change.healthy,
            reason=change.reason,
            at=self._clock(),
        )
        verb = "recovered" if change.healthy else "failed"
        self.outbox.add(event_subject("device", verb), event.model_dump(mode="json"))
        return event

    async def agent_marks(self) -> dict[NodeName, tuple[str, int]]:
        """See bus.heartbeats.CardReader."""
        return {
            name: (node.agent_id, node.sequence)
            for name, node in self._nodes.items()
            if node.has_agent and not node.gone
        }

    async def tally(self) -> tuple[int, int]:
        """See the port CardReader."""
        return len(self._present), sum(self._cards[uuid].version for uuid in self._present)

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """See the port CardReader."""
        return {
            uuid: (card.node, card.version)
            for uuid, card in self._cards.items()
            if uuid in self._present
        }

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """See the port CardReader."""
        found = [
            LedgerCard(node=card.node, usage=self.usage(uuid), version=card.version)
            for uuid, card in self._cards.items()
            if uuid in self._present and (nodes is None or card.node in nodes)
        ]
        return sorted(found, key=lambda card: (card.node, card.usage.device.index))

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """See the port CardReader."""
        del nodes
        return {}
