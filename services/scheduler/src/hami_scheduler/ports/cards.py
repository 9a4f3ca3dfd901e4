"""Nodes and their cards in the ledger: reported by agents or annotations, read for the view."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hamicommon.domain.devices import DeviceUsage, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.events import DeviceHealthEvent

PairScores = Mapping[GpuUuid, Mapping[GpuUuid, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerCard:
    """A card as the ledger has it."""

    node: NodeName
    usage: DeviceUsage
    version: int


class CardReader(Protocol):
    """Cards of the ledger, for the view."""

    async def tally(self) -> tuple[int, int]:
        """(number of present cards, sum of their versions): equal tallies mean equal cards.

        Versions only grow, and a card that enters has a higher one than any that left.
        """
        ...

    async def versions(self) -> dict[str, tuple[NodeName, int]]:
        """uuid -> (node, version) of every present card."""
        ...

    async def cards(self, nodes: Sequence[NodeName] | None = None) -> list[LedgerCard]:
        """Cards of these nodes, or of all, ordered by node and index."""
        ...

    async def pair_scores(self, nodes: Sequence[NodeName]) -> dict[NodeName, PairScores]:
        """How well the cards of these nodes are connected, where their agents measured it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedInventory:
    """What became of one report."""

    changed: bool
    """Some card's row was written."""
    health: tuple[DeviceHealthEvent, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """The reason, by uuid, for each card that was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInventory:
    """What an agent reported; `observed_at` of it is when the bus took it."""

    inventory: NodeInventory
    agent_id: str
    sequence: int
    repeats: bool = False
    """It is as the one before it of this agent, which was recorded; the cards are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedCard:
    """A card whose counters were not the sum of its live grants, and are now."""

    uuid: GpuUuid
    node: NodeName
    detail: str
    is_older: bool
    """The version that it has now is lower than the one before."""


@dataclass(frozen=True, slots=True)
class RepairedSequence:
    """What numbers are drawn from was at its end, or behind the rows."""

    name: str
    was: int
    is_now: int


class CounterStore(Protocol):
    """What the ledger counts. Both raise: Conflict, Unavailable."""

    async def repair_cards(self) -> Sequence[RepairedCard]:
        """Counts the live grants of every card that has other counters."""
        ...

    async def repair_sequences(self) -> Sequence[RepairedSequence]:
        """Lets numbers go on beyond the newest rows."""
        ...


class InventoryStore(Protocol):
    """Nodes and cards as their agents report them."""

    async def record_all(
        self, reports: Sequence[AgentInventory]
    ) -> Sequence[RecordedInventory | None]:
        """As `record` for reports of different nodes, all or none.

        Of what repeats it is recorded that the node was heard; None also when its last report is
        another agent's, or the node was given up since. Raises: also Conflict.
        """
        ...

    async def record(
        self, inventory: NodeInventory, *, agent_id: str, sequence: int
    ) -> RecordedInventory | None:
        """Writes what differs; None when the report is older than what is known.

        `observed_at` of the inventory is when the bus took it. Raises: Unavailable.
        """
        ...

    async def forget_number(self, node: NodeName) -> int | None:
        """Forgets how many reports of its agent are known, so that the next one is taken.

        Returns the number; None: the node is not known. Raises: Unavailable.
        """
        ...

    async def record_annotated(
        self, inventory: NodeInventory, *, keep: frozenset[str], node_uid: str, sequence: int
    ) -> RecordedInventory | None:
        """Writes what a Node object has, for a node without our agent.

        Cards of the vendors in `keep`, and then the pair scores too, stay as they are. None when
        the node's own agent reports, or a later state is known already: `sequence` grows within
        one `node_uid`. Raises: Unavailable.
        """
        ...

    async def set_cordoned(self, node: NodeName, uuids: frozenset[str]) -> bool:
        """Marks exactly these cards of the node as cordoned; True when something changed."""
        ...

    async def mark_gone(self, node: NodeName) -> None:
        """The Node object was deleted: its cards are no longer present."""
        ...


class NodeGroupStore(Protocol):
    """Which group, such as a rack, each node is of."""

    async def set_groups(self, groups: Mapping[NodeName, str | None]) -> Collection[NodeName]:
        """Writes those that differ; returns the nodes that are known. Raises: Unavailable."""
        ...
