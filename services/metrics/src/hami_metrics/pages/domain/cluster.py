"""The cluster as a page shows it: nodes, their cards and who holds them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from hami_metrics.domain.cluster import SILENT_AFTER


class CardCondition(StrEnum):
    """What one look at a card should show; the worst that holds."""

    UNKNOWN = "unknown"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    STRANDED = "stranded"
    """Memory is free, but no slot or no core is: nobody can have it."""
    FULL = "in use"
    PARTLY = "partly in use"
    FREE = "free"


PROBLEMS = frozenset({CardCondition.UNKNOWN, CardCondition.UNHEALTHY})


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHolder:
    """What one pod holds of one card: max(init, app) per dimension."""

    pod_uid: str
    namespace: str
    pod_name: str
    memory_mib: int
    core_percent: int
    state: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCard:
    """One card with its holders, the largest first."""

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
        """Not granted; a card that shrank under its grants has none."""
        return max(0, self.memory_mib - self.used_memory_mib)

    @property
    def granted_percent(self) -> int:
        """Of its memory, in whole numbers."""
        return min(100, round(100 * self.used_memory_mib / max(1, self.memory_mib)))

    @property
    def has_room(self) -> bool:
        """A slot and some of the cores are free."""
        return self.used_slots < self.slots and self.used_core_percent < self.core_percent

    @property
    def free_slots(self) -> int:
        """How many more slices it takes."""
        return max(0, self.slots - self.used_slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
    """One node with its cards by index."""

    name: str
    source: str
    """`agent`: our agent reports it; `annotation`: another device plugin does."""
    heard_at: datetime | None
    cards: tuple[PageCard, ...] = ()
    group: str = ""
    """Such as its rack: the value of a label of the Node object; empty: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUse:
    """What was measured of a card in its newest five minutes; None is unknown."""

    memory_mib: float | None
    core_percent: float | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something that became of a pod's grant or request."""

    at: datetime
    pod_uid: str
    namespace: str
    pod_name: str
    node: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCluster:
    """All of it at one moment; `version` grows by one with each change."""

    version: int
    taken_at: datetime
    nodes: Mapping[str, PageNode]
    use: Mapping[str, MeasuredUse] = field(default_factory=dict)
    """By uuid; a card that is not in it is not measured."""
    waiting: int | None = None
    """Refused pods that still exist and are not placed; None: unknown."""
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    recent: tuple[Occurrence, ...] = ()
    past: bool = False
    """Not now: agents' silence does not count."""

    def cards(self) -> Iterable[PageCard]:
        """Every card, in the order of nodes and indexes."""
        for node in self.nodes.values():
            yield from node.cards


def silent(node: PageNode, now: datetime) -> bool:
    """Nothing was heard of its agent lately; where no agent reports, nobody can be silent."""
    if node.source != "agent":
        return False
    return node.heard_at is None or now - node.heard_at > SILENT_AFTER


def condition(card: PageCard, *, unheard: bool) -> CardCondition:
    """The worst that holds. `unheard`: its node's agent is silent."""
    if unheard:
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


def takes(card: PageCard, *, unheard: bool) -> bool:
    """Whether the next pod may get a slice of it."""
    return card.healthy and not card.cordoned and not unheard and card.has_room


def with_known_cards(
    fresh: Mapping[str, PageNode], before: Mapping[str, PageNode]
) -> dict[str, PageNode]:
    """What was read, with the cards of before where they are equal.

    What is made of a node's cards and kept, such as its line of the grid, is known by the object.
    """
    found = {}
    for name, node in fresh.items():
        old = before.get(name)
        same = node if old is None or old.cards != node.cards else replace(node, cards=old.cards)
        found[name] = same
    return found


def changed_nodes(before: PageCluster, after: PageCluster, now: datetime) -> frozenset[str]:
    """Nodes that look different, stand in another group, came or went, or fell silent."""
    names = before.nodes.keys() | after.nodes.keys()
    return frozenset(name for name in names if _changed(name, before, after, now))


def _changed(name: str, before: PageCluster, after: PageCluster, now: datetime) -> bool:
    old, new = before.nodes.get(name), after.nodes.get(name)
    if old is None or new is None or old.group != new.group:
        return True
    if old.cards is not new.cards and old.cards != new.cards:
        return True
    return silent(old, before.taken_at) != silent(new, now)
