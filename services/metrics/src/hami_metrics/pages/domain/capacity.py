"""What is held, active and free in a whole cluster: the first lines of the overview. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

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


def totals(state: PageCluster) -> Totals:
    """All of a state's sums."""
    return Totals(
        funnel=funnel(state),
        fitting=fitting(state),
        stranded_percent=stranded_percent(state),
        held=held_by_namespace(state),
        models=sorted({card.type for card in state.cards()}),
        counts=count(state.nodes.values(), state, state.taken_at),
    )


def count(
    nodes: Iterable[PageNode], state: PageCluster, now: datetime
) -> Mapping[CardCondition, int]:
    """Cards of these nodes by their condition."""
    counts = dict.fromkeys(CardCondition, 0)
    for node in nodes:
        unheard = not state.past and silent(node, now)
        for card in node.cards:
            counts[condition(card, unheard=unheard)] += 1
    return counts


@dataclass(frozen=True, slots=True)
class NodeTally:
    """How many cards of a node somebody holds, are free, and are unhealthy or unknown."""

    held: int
    free: int
    sick: int


class NodeTallies:
    """Those of nodes as they were counted last: most nodes are the same from page to page."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PageCard, ...], bool, NodeTally]] = {}

    def of(self, node: PageNode, *, unheard: bool) -> NodeTally:
        """Counted again when the node's cards or its silence changed."""
        known = self._known.get(node.name)
        if known is not None and known[0] is node.cards and known[1] == unheard:
            return known[2]
        states = [condition(card, unheard=unheard) for card in node.cards]
        tally = NodeTally(
            held=sum(bool(card.used_slots) for card in node.cards),
            free=states.count(CardCondition.FREE),
            sick=sum(state in PROBLEMS for state in states),
        )
        self._known[node.name] = (node.cards, unheard, tally)
        return tally


def funnel(state: PageCluster) -> Funnel:
    """Counts of one moment."""
    cards = held = active = 0
    total, measured = 0.0, 0
    for card in state.cards():
        cards += 1
        held += bool(card.used_slots)
        use = state.use.get(card.uuid)
        if use is not None and use.core_percent is not None:
            measured += 1
            total += use.core_percent
            active += use.core_percent > 0
    return Funnel(
        cards=cards,
        held=held,
        active=active if measured else None,
        effective_percent=total / measured if measured else None,
    )


def fitting(state: PageCluster) -> Fitting:
    """What may still be granted; annotations and quotas of a pod may want less."""
    counts = dict.fromkeys(SLICES_GIB, 0)
    whole = nodes = 0
    for node in state.nodes.values():
        unheard = not state.past and silent(node, state.taken_at)
        idle = 0
        for card in node.cards:
            if not takes(card, unheard=unheard):
                continue
            for size in SLICES_GIB:
                counts[size] += min(card.free_mib // (size * 1024), card.free_slots)
            idle += not card.used_slots
        whole += idle
        nodes += idle >= MANY_CARDS
    return Fitting(slices=tuple(counts.items()), whole_cards=whole, whole_nodes=nodes)


def stranded_percent(state: PageCluster) -> float | None:
    """Free memory that nobody can have, of all memory; None without a card."""
    stranded = total = 0
    for card in state.cards():
        total += card.memory_mib
        if condition(card, unheard=False) is CardCondition.STRANDED:
            stranded += card.free_mib
    return 100 * stranded / total if total else None


def held_by_namespace(state: PageCluster) -> dict[str, int]:
    """Granted MiB by namespace, the largest first; equal ones by name."""
    held: dict[str, int] = {}
    for card in state.cards():
        for holder in card.holders:
            held[holder.namespace] = held.get(holder.namespace, 0) + holder.memory_mib
    return dict(sorted(held.items(), key=lambda item: (-item[1], item[0])))
