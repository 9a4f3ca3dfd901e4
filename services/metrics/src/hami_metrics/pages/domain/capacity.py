"""What is held, active and free in a whole cluster: the first lines of the overview. Pure.

Each node's cards are summed once and then kept for as long as they are the same objects: between
two pages, or two messages of a stream, most of them are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hami_metrics.pages.domain.cluster import (
    PROBLEMS,
    CardCondition,
    PageCard,
    PageCluster,
    PageNode,
    condition,
    silent,
    takes,
)

SLICES_GIB = (8, 40)
"""Sizes of slices that the overview counts; the usual ones of inference and of training."""
_CONDITIONS = tuple(CardCondition)
MANY_CARDS = 8
"""Cards of one node that a large training wants at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """From cards to work; None is unknown."""

    cards: int
    held: int
    active: int | None
    """Cards that computed in their newest five minutes, of those that are measured."""
    effective_percent: float | None
    """Mean of what the measured cards computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How many more of a kind fit now, by memory, slots and cores alone."""

    slices: tuple[tuple[int, int], ...]
    """(GiB, how many slices of it)."""
    whole_cards: int
    whole_nodes: int
    """Nodes with `MANY_CARDS` idle cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Of one state; made once for all who look at it."""

    funnel: Funnel
    fitting: Fitting
    stranded_percent: float | None
    """Free memory that nobody can have, of all memory; None without a card."""
    held: Mapping[str, int]
    """Granted MiB by namespace, the largest first; equal ones by name."""
    models: Sequence[str]
    counts: Mapping[CardCondition, int]


@dataclass(frozen=True, slots=True)
class NodeTally:
    """How many cards of a node somebody holds, are free, and are unhealthy or unknown."""

    held: int
    free: int
    sick: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSums:
    """What one node adds to the sums of its cluster."""

    tally: NodeTally
    counts: tuple[int, ...]
    """Cards of each `CardCondition`."""
    held: Mapping[str, int]
    """Granted MiB by namespace."""
    slices: tuple[int, ...]
    """How many more fit, of each of `SLICES_GIB`."""
    idle: int
    """Cards that a pod may get whole."""
    memory_mib: int
    stranded_mib: int
    """Free, but nobody can have it."""
    models: frozenset[str]


class NodeTallies:
    """Those of nodes as they were counted last: most nodes are the same from page to page."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PageCard, ...], bool, NodeSums]] = {}

    def of(self, node: PageNode, *, unheard: bool) -> NodeTally:
        """Counted again when the node's cards or its silence changed."""
        return self.sums(node, unheard=unheard).tally

    def sums(self, node: PageNode, *, unheard: bool) -> NodeSums:
        """Likewise."""
        known = self._known.get(node.name)
        if known is not None and known[0] is node.cards and known[1] == unheard:
            return known[2]
        found = _sums(node.cards, unheard=unheard)
        self._known[node.name] = (node.cards, unheard, found)
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forgets all other nodes: where machines come and go, names never end."""
        if len(self._known) > len(names):
            self._known = {name: self._known[name] for name in names if name in self._known}


def _sums(cards: tuple[PageCard, ...], *, unheard: bool) -> NodeSums:
    # One loop: a large cluster's first page, and each moment of the past, sums all of its cards.
    states: list[CardCondition] = []
    held: dict[str, int] = {}
    slices = [0] * len(SLICES_GIB)
    holding = idle = memory_mib = stranded_mib = 0
    for card in cards:
        own = condition(card, unheard=False)
        states.append(CardCondition.UNKNOWN if unheard else own)
        holding += bool(card.used_slots)
        memory_mib += card.memory_mib
        for holder in card.holders:
            held[holder.namespace] = held.get(holder.namespace, 0) + holder.memory_mib
        if own is CardCondition.STRANDED:
            # Also of an agent that is silent: its grants stay.
            stranded_mib += card.free_mib
        if takes(card, unheard=unheard):
            idle += not card.used_slots
            for place, gib in enumerate(SLICES_GIB):
                slices[place] += min(card.free_mib // (gib * 1024), card.free_slots)
    return NodeSums(
        tally=NodeTally(
            held=holding,
            free=states.count(CardCondition.FREE),
            sick=sum(map(states.count, PROBLEMS)),
        ),
        counts=tuple(map(states.count, _CONDITIONS)),
        held=held,
        slices=tuple(slices),
        idle=idle,
        memory_mib=memory_mib,
        stranded_mib=stranded_mib,
        models=frozenset(card.type for card in cards),
    )


def totals(state: PageCluster, tallies: NodeTallies | None = None) -> Totals:
    """All of a state's sums; `tallies`: what was summed before, None: sum all."""
    known = tallies or NodeTallies()
    nodes = [
        known.sums(node, unheard=not state.past and silent(node, state.taken_at))
        for node in state.nodes.values()
    ]
    held: dict[str, int] = {}
    for node in nodes:
        for namespace, mib in node.held.items():
            held[namespace] = held.get(namespace, 0) + mib
    memory_mib = sum(node.memory_mib for node in nodes)
    stranded_mib = sum(node.stranded_mib for node in nodes)
    return Totals(
        funnel=_funnel(state, sum(node.tally.held for node in nodes)),
        fitting=_fitting(nodes),
        stranded_percent=100 * stranded_mib / memory_mib if memory_mib else None,
        held=dict(sorted(held.items(), key=lambda item: (-item[1], item[0]))),
        models=sorted(frozenset().union(*(node.models for node in nodes))),
        counts={
            kind: sum(node.counts[place] for node in nodes)
            for place, kind in enumerate(_CONDITIONS)
        },
    )


def _funnel(state: PageCluster, held: int) -> Funnel:
    uuids = [card.uuid for card in state.cards()]
    used = [state.use[uuid].core_percent for uuid in uuids if uuid in state.use]
    measured = [percent for percent in used if percent is not None]
    return Funnel(
        cards=len(uuids),
        held=held,
        active=sum(percent > 0 for percent in measured) if measured else None,
        effective_percent=sum(measured) / len(measured) if measured else None,
    )


def _fitting(nodes: Sequence[NodeSums]) -> Fitting:
    """What may still be granted; annotations and quotas of a pod may want less."""
    return Fitting(
        slices=tuple(
            (gib, sum(node.slices[place] for node in nodes)) for place, gib in enumerate(SLICES_GIB)
        ),
        whole_cards=sum(node.idle for node in nodes),
        whole_nodes=sum(node.idle >= MANY_CARDS for node in nodes),
    )
