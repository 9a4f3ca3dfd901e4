"""State of the cluster for pages: nodes, cards, holders and sums. Pure.

Values computed from a node's cards (its sums, its line of the grid) are cached by the identity of
the cards, so equal cards stay the same objects from one reading to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from hami_metrics.domain.cluster import SILENT_AFTER

Row = Mapping[str, Any]
"""Row of an answer of the ledger."""


class CardCondition(StrEnum):
    """Worst condition of a card."""

    UNKNOWN = "unknown"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    STRANDED = "stranded"
    """Memory is free, but no pod can get it, because no slot or no cores are free."""
    FULL = "in use"
    PARTLY = "partly in use"
    FREE = "free"


PROBLEMS = frozenset({CardCondition.UNKNOWN, CardCondition.UNHEALTHY})
GLYPHS = {
    CardCondition.FULL: "●",
    CardCondition.PARTLY: "◐",
    CardCondition.FREE: "○",
    CardCondition.STRANDED: "▒",
    CardCondition.CORDONED: "⊘",
    CardCondition.UNHEALTHY: "✖",
    CardCondition.UNKNOWN: "?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHolder:
    """Part of one card that one pod takes: max(init, app) per dimension."""

    pod_uid: str
    namespace: str
    pod_name: str
    memory_mib: int
    core_percent: int
    state: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCard:
    """Card with its holders, the largest first."""

    uuid: str
    node: str
    index: int
    type: str
    slots: int
    memory_mib: int
    core_percent: int
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    healthy: bool
    health_reason: str
    cordoned: bool
    holders: tuple[CardHolder, ...] = ()

    @property
    def free_mib(self) -> int:
        """Return free memory; 0 for a card that shrank under its grants."""
        return max(0, self.memory_mib - self.used_memory_mib)

    @property
    def room_mib(self) -> int:
        """Return the MiB within `used_memory_mib` that are kept for waiting pods."""
        return sum(one.memory_mib for one in self.holders if one.state == "reserved")

    @property
    def granted_percent(self) -> int:
        """Return the granted percent of its memory."""
        return min(100, round(100 * self.used_memory_mib / max(1, self.memory_mib)))

    @property
    def has_room(self) -> bool:
        """Return whether a slot and some cores are free."""
        return self.used_slots < self.slots and self.used_core_percent < self.core_percent

    @property
    def free_slots(self) -> int:
        """Return the number of slices that it can still take."""
        return max(0, self.slots - self.used_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
    """Node with its cards by index."""

    name: str
    source: str
    """Source of the cards: `agent` (ours) or `annotation` (another device plugin)."""
    heard_at: datetime | None
    cards: tuple[PageCard, ...] = ()
    group: str = ""
    """Group, such as a rack: the value of a label of the Node; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUse:
    """Measured use of a card or a pod; None is unknown."""

    memory_mib: float | None
    core_percent: float | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCluster:
    """State of the cluster at one moment; `version` grows by one with each change."""

    version: int
    taken_at: datetime
    nodes: Mapping[str, PageNode]
    use: Mapping[str, MeasuredUse] = field(default_factory=dict)
    """Measured use by uuid; a missing card is not measured."""
    waiting: int | None = None
    """Number of refused pods that still wait; None: unknown."""
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    recent: tuple[Row, ...] = ()
    """Last changes of grants, the newest first."""
    past: bool = False
    """Whether the state is of the past, when agents do not count as silent."""

    def cards(self) -> Iterable[PageCard]:
        """Return all cards in the order of nodes and indexes."""
        for node in self.nodes.values():
            yield from node.cards

    def is_silent(self, node: PageNode) -> bool:
        """Return whether the node's agent is silent; False in the past."""
        return not self.past and is_silent(node, self.taken_at)


def is_silent(node: PageNode, now: datetime) -> bool:
    """Return whether its agent has not reported recently; False for a node without an agent."""
    if node.source != "agent":
        return False
    return node.heard_at is None or now - node.heard_at > SILENT_AFTER


def condition(card: PageCard, *, silent: bool) -> CardCondition:
    """Return the worst condition of a card. `silent`: the agent of its node is."""
    if silent:
        return CardCondition.UNKNOWN
    if not card.healthy:
        return CardCondition.UNHEALTHY
    if card.cordoned:
        return CardCondition.CORDONED
    if not card.used_slots and not card.used_memory_mib:
        return CardCondition.FREE
    if card.has_room and card.free_mib:
        return CardCondition.PARTLY
    return CardCondition.STRANDED if card.free_mib else CardCondition.FULL


def with_known_cards(
    fresh: Mapping[str, PageNode], before: Mapping[str, PageNode]
) -> dict[str, PageNode]:
    """Return the nodes as read, reusing earlier objects that are equal."""
    found = {}
    for name, node in fresh.items():
        old = before.get(name)
        if old is not None and old.cards == node.cards:
            node = old if old == node else replace(node, cards=old.cards)
        found[name] = node
    return found


def merge_nodes(
    before: Mapping[str, PageNode],
    present: Mapping[str, PageNode],
    reread: Set[str],
    cards: Iterable[PageCard],
) -> dict[str, PageNode]:
    """Return the present nodes with their cards, of which some were read again.

    Args:
        before: the nodes of the last reading.
        present: the nodes that are there now; one that was there before is without its cards.
        reread: uuids of the cards that were read again.
        cards: those of them that are there.
    """
    arrived: dict[str, list[PageCard]] = defaultdict(list)
    for card in cards:
        arrived[card.node].append(card)
    fresh = {}
    for name, node in present.items():
        if name in before:
            kept = [card for card in before[name].cards if card.uuid not in reread]
            here = sorted([*kept, *arrived.get(name, ())], key=lambda card: (card.index, card.uuid))
            node = replace(node, cards=tuple(here))
        fresh[name] = node
    return with_known_cards(fresh, before)


def changed_nodes(before: PageCluster, after: PageCluster) -> frozenset[str]:
    """Return nodes that changed, moved to another group, came, went, or fell silent."""
    names = before.nodes.keys() | after.nodes.keys()
    return frozenset(name for name in names if _is_changed(name, before, after))


def _is_changed(name: str, before: PageCluster, after: PageCluster) -> bool:
    old, new = before.nodes.get(name), after.nodes.get(name)
    if old is None or new is None or old.group != new.group:
        return True
    if old.cards is not new.cards and old.cards != new.cards:
        return True
    return before.is_silent(old) != after.is_silent(new)


def differing_cards(then: PageCluster, now: PageCluster) -> frozenset[str]:
    """Return cards whose holders or health differ from an earlier moment, or that are gone.

    Silence is left out: an agent is silent only now.
    """
    before = {card.uuid: _comparable(card) for card in then.cards()}
    after = {card.uuid: _comparable(card) for card in now.cards()}
    return frozenset(uuid for uuid, card in before.items() if after.get(uuid) != card)


def _comparable(card: PageCard) -> tuple[object, ...]:
    held = frozenset((one.pod_uid, one.memory_mib, one.core_percent) for one in card.holders)
    return card.node, condition(card, silent=False), card.health_reason, held


SLICES_GIB = (8, 40)
"""Sizes of slices that the overview counts, usual for inference and training."""
CARDS_OF_A_NODE = 8
"""Number of cards on one node that a large training needs."""
_CONDITIONS = tuple(CardCondition)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSums:
    """One node's part of the cluster's sums."""

    held: int
    counts: tuple[int, ...]
    """Number of cards per `CardCondition`."""
    held_mib: Mapping[str, int]
    """Granted MiB by namespace."""
    slices: tuple[int, ...]
    """Number of slices that still fit, for each of `SLICES_GIB`."""
    idle: int
    """Number of idle cards that a pod may get whole."""
    memory_mib: int
    stranded_mib: int
    """Free memory that no pod can get."""
    models: frozenset[str]

    def count(self, *kinds: CardCondition) -> int:
        """Return the number of cards in these conditions."""
        return sum(self.counts[_CONDITIONS.index(kind)] for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSums:
    """Sums in the first lines of the overview; None is unknown."""

    cards: int
    held: int
    active: int | None
    """Number of measured cards whose cores are active."""
    effective_percent: float | None
    """Mean core use of the measured cards."""
    slices: tuple[tuple[int, int], ...]
    """Pairs of GiB and the number of slices that fit by memory, slots and cores."""
    whole_cards: int
    whole_nodes: int
    """Number of nodes with `CARDS_OF_A_NODE` idle cards."""
    stranded_percent: float | None
    """Percent of all memory that is free but that no pod can get; None without a card."""
    held_mib: Mapping[str, int]
    """Granted MiB by namespace, the largest first; equal ones by name."""
    models: Sequence[str]
    counts: Mapping[CardCondition, int]


class SumCache:
    """Cache of nodes' sums, valid while their cards are the same objects."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PageCard, ...], bool, NodeSums]] = {}

    def node_sums(self, node: PageNode, *, silent: bool) -> NodeSums:
        """Return the node's sums, computed again if cards or silence changed."""
        known = self._known.get(node.name)
        if known is not None and known[0] is node.cards and known[1] == silent:
            return known[2]
        found = _node_sums(node.cards, silent=silent)
        self._known[node.name] = (node.cards, silent, found)
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forget nodes with other names, of which there may be ever new ones."""
        if len(self._known) > len(names):
            self._known = {name: self._known[name] for name in names if name in self._known}


def _node_sums(cards: tuple[PageCard, ...], *, silent: bool) -> NodeSums:
    # One loop: a large cluster's first page, and each moment of the past, sums all of its cards.
    states: list[CardCondition] = []
    held_mib: dict[str, int] = {}
    slices = [0] * len(SLICES_GIB)
    held = idle = memory_mib = stranded_mib = 0
    for card in cards:
        own = condition(card, silent=False)
        states.append(CardCondition.UNKNOWN if silent else own)
        held += bool(card.used_slots)
        memory_mib += card.memory_mib
        for holder in card.holders:
            held_mib[holder.namespace] = held_mib.get(holder.namespace, 0) + holder.memory_mib
        if own is CardCondition.STRANDED:
            # Also of an agent that is silent: its grants stay.
            stranded_mib += card.free_mib
        if card.healthy and not card.cordoned and not silent and card.has_room:
            idle += not card.used_slots
            for place, gib in enumerate(SLICES_GIB):
                slices[place] += min(card.free_mib // (gib * 1024), card.free_slots)
    return NodeSums(
        held=held,
        counts=tuple(map(states.count, _CONDITIONS)),
        held_mib=held_mib,
        slices=tuple(slices),
        idle=idle,
        memory_mib=memory_mib,
        stranded_mib=stranded_mib,
        models=frozenset(card.type for card in cards),
    )


def cluster_sums(state: PageCluster, known: SumCache | None = None) -> ClusterSums:
    """Return the sums of a state; `known`: the cache of nodes' sums."""
    known = known or SumCache()
    nodes = [known.node_sums(node, silent=state.is_silent(node)) for node in state.nodes.values()]
    held_mib: dict[str, int] = {}
    for node in nodes:
        for namespace, mib in node.held_mib.items():
            held_mib[namespace] = held_mib.get(namespace, 0) + mib
    memory_mib = sum(node.memory_mib for node in nodes)
    stranded_mib = sum(node.stranded_mib for node in nodes)
    uuids = [card.uuid for card in state.cards()]
    used = [state.use[uuid].core_percent for uuid in uuids if uuid in state.use]
    measured = [percent for percent in used if percent is not None]
    return ClusterSums(
        cards=len(uuids),
        held=sum(node.held for node in nodes),
        active=sum(percent > 0 for percent in measured) if measured else None,
        effective_percent=sum(measured) / len(measured) if measured else None,
        slices=tuple(
            (gib, sum(node.slices[place] for node in nodes)) for place, gib in enumerate(SLICES_GIB)
        ),
        whole_cards=sum(node.idle for node in nodes),
        whole_nodes=sum(node.idle >= CARDS_OF_A_NODE for node in nodes),
        stranded_percent=100 * stranded_mib / memory_mib if memory_mib else None,
        held_mib=dict(sorted(held_mib.items(), key=lambda item: (-item[1], item[0]))),
        models=sorted(frozenset().union(*(node.models for node in nodes))),
        counts={kind: sum(node.count(kind) for node in nodes) for kind in CardCondition},
    )
