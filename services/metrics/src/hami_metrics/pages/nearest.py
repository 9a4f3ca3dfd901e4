"""Find the cards that lack the least for a slice that fits nowhere. Pure.

By size only: memory, cores and slots. The engine checks the types, selectors and quotas of a pod
(`hamictl explain`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from hami_metrics.pages.cluster import PageCard, PageCluster

EXCLUSIVE = 100
"""Percent of cores with which a pod wants the card for itself (docs/libvgpu.md)."""
_TENTHS = 10 / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """Amounts that a pod requests of each of `count` cards of one node."""

    count: int
    memory_mib: int | None
    """Memory; None: `memory_ratio` of the card, or nothing."""
    memory_ratio: float | None
    core_percent: int

    def memory_of(self, card: PageCard) -> int:
        """Return the MiB that the slice takes of this card."""
        if self.memory_mib is not None:
            return self.memory_mib
        return int(card.memory_mib * (self.memory_ratio or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLack:
    """Amounts that one card lacks for one slice; zeros and False if it fits."""

    card: PageCard
    memory_mib: int
    core_percent: int
    slot: bool
    held: bool
    """Whether all cores are requested but the card has other holders."""

    @property
    def count(self) -> int:
        """Return the number of amounts that are too small."""
        return sum(map(bool, (self.memory_mib, self.core_percent, self.slot, self.held)))

    @property
    def rank(self) -> tuple[int, float]:
        """Return the sort key: fewest lacks, then the smallest parts of the card."""
        memory = self.memory_mib / max(1, self.card.memory_mib)
        return self.count, memory + self.core_percent / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestNode:
    """Node whose cards lack the least."""

    node: str
    lacks: tuple[CardLack, ...]
    """Lacks of its nearest cards, as many as are requested, if it has so many."""
    wanted: int

    @property
    def fitting(self) -> int:
        """Return the number of these cards that fit."""
        return sum(not lack.count for lack in self.lacks)


def lack_of(card: PageCard, size: SliceSize) -> CardLack:
    """Return what the card lacks now."""
    free_cores = max(0, card.core_percent - card.used_core_percent)
    exclusive = size.core_percent >= EXCLUSIVE
    # A card whose cores are all granted accepts no pod, not even one that requests none.
    least = max(size.core_percent, 1)
    return CardLack(
        card=card,
        memory_mib=max(0, size.memory_of(card) - card.free_mib),
        core_percent=0 if exclusive else max(0, least - free_cores),
        slot=not card.free_slots,
        held=exclusive and bool(card.used_slots),
    )


def nearest(state: PageCluster, size: SliceSize) -> NearestNode | None:
    """Return the nearest node; None: no card is usable."""
    best: tuple[tuple[int, float, float, str], NearestNode] | None = None
    for node in state.nodes.values():
        lacks = sorted(_lacks(state, [node.name], size), key=lambda lack: lack.rank)[: size.count]
        if not lacks:
            continue
        found = NearestNode(node=node.name, lacks=tuple(lacks), wanted=size.count)
        lacking = sum(lack.rank[0] for lack in lacks)
        shares = sum(lack.rank[1] for lack in lacks)
        order = (size.count - found.fitting, lacking, shares, node.name)
        if best is None or order < best[0]:
            best = (order, found)
    return None if best is None else best[1]


def nearest_cards(state: PageCluster, size: SliceSize, longest: int) -> tuple[CardLack, ...]:
    """Return the cards of all nodes that lack the least for one slice."""
    return tuple(
        heapq.nsmallest(
            longest,
            _lacks(state, state.nodes, size),
            key=lambda lack: (lack.rank, lack.card.node, lack.card.index),
        )
    )


def _lacks(state: PageCluster, names: Iterable[str], size: SliceSize) -> Iterable[CardLack]:
    """Yield the lacks of usable cards: healthy, not cordoned, agent not silent."""
    for name in names:
        if state.is_silent(state.nodes[name]):
            continue
        for card in state.nodes[name].cards:
            if card.healthy and not card.cordoned:
                yield lack_of(card, size)


def nearest_text(found: NearestNode | None) -> str:
    """Format `n014 card 3: lacks 1.5 GiB of memory; fits at 38.5 GiB`."""
    if found is None:
        return "no healthy card that is not cordoned"
    first = found.lacks[0].card
    place = f"{first.node} card {first.index}" if found.wanted == 1 else found.node
    if found.fitting == found.wanted:
        return f"{place} has room; the pod waits for another reason"
    if found.wanted == 1:
        return f"{place}: {_lack_text(found.lacks[0])}"
    missing = found.lacks[found.fitting : found.fitting + 1]
    least = f"; the next card {_lack_text(missing[0])}" if missing else ""
    return f"{place}: {found.fitting} of {found.wanted} cards fit{least}"


def lack_text(lack: CardLack, wanted: int = 1) -> str:
    """Format what one card lacks: `lacks 1.5 GiB of memory; fits at 38.5 GiB`.

    `wanted`: cards of one node that the pod asks for.
    """
    if lack.count:
        return _lack_text(lack)
    if wanted > 1:
        return f"has room, but the pod needs {wanted} cards of one node"
    return "has room; the pod waits for another reason"


def _lack_text(lack: CardLack) -> str:
    card = lack.card
    parts, changes, held = [], [], ""
    if lack.memory_mib:
        parts.append(f"{_rounded_up(lack.memory_mib)} of memory")
        changes.append(_rounded_down(card.free_mib))
    if lack.core_percent:
        free = max(0, card.core_percent - card.used_core_percent)
        parts.append(f"{lack.core_percent} % of its cores")
        changes.append(f"{free} % cores" if free else "")
    if lack.slot:
        parts.append("a slot")
        changes.append("")
    if lack.held:
        held = "is in use by other pods"
        changes.append("")
    lacks = f"lacks {' and '.join(parts)}" if parts else ""
    text = " and ".join(each for each in (lacks, held) if each)
    # Where no smaller size helps, others have to give something back.
    if all(changes) and (not lack.memory_mib or card.free_mib):
        return f"{text}; fits at {' and '.join(changes)}"
    return f"{text}; fits when pods there end"


def _rounded_down(mib: int) -> str:
    """Format a free amount, rounded down."""
    return f"{mib} MiB" if mib < 1024 else f"{math.floor(mib * _TENTHS) / 10:g} GiB"


def _rounded_up(mib: int) -> str:
    """Format a missing amount, rounded up."""
    return f"{mib} MiB" if mib < 1024 else f"{math.ceil(mib * _TENTHS) / 10:g} GiB"
