"""Which card is nearest to a slice that fits nowhere, and what it lacks. Pure.

By size alone: memory, cores and slots. Types, selectors and quotas that a pod wants are the
engine's to look at (`hamictl explain`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from hami_metrics.pages.domain.cluster import PageCard, PageCluster, silent

EXCLUSIVE = 100
"""Percent of a card's cores that nobody else may be on (docs/core-limits.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSize:
    """What a pod asks of each of `count` cards of one node."""

    count: int
    memory_mib: int | None
    """None: `memory_ratio` of the card, or nothing."""
    memory_ratio: float | None
    core_percent: int

    def memory_of(self, card: PageCard) -> int:
        """MiB of this card."""
        if self.memory_mib is not None:
            return self.memory_mib
        return int(card.memory_mib * (self.memory_ratio or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLack:
    """What one card lacks for one slice; all zero and False: it fits."""

    card: PageCard
    memory_mib: int
    core_percent: int
    slot: bool
    held: bool
    """All of its cores are wanted, and somebody is on it."""

    @property
    def count(self) -> int:
        """Of how many things there is too little."""
        return sum(map(bool, (self.memory_mib, self.core_percent, self.slot, self.held)))

    @property
    def rank(self) -> tuple[int, float]:
        """The least first: fewest lacks, then the smallest shares of the card."""
        memory = self.memory_mib / max(1, self.card.memory_mib)
        return self.count, memory + self.core_percent / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestNode:
    """The node whose cards lack the least."""

    node: str
    lacks: tuple[CardLack, ...]
    """Of its nearest cards, as many as are wanted, or as there are."""
    wanted: int

    @property
    def fitting(self) -> int:
        """Cards of these that fit."""
        return sum(not lack.count for lack in self.lacks)


def lack_of(card: PageCard, size: SliceSize) -> CardLack:
    """What the card lacks now."""
    free_cores = max(0, card.core_percent - card.used_core_percent)
    exclusive = size.core_percent >= EXCLUSIVE
    # A card whose cores are all granted takes nobody, not even one who wants none.
    least = max(size.core_percent, 1)
    return CardLack(
        card=card,
        memory_mib=max(0, size.memory_of(card) - card.free_mib),
        core_percent=0 if exclusive else max(0, least - free_cores),
        slot=not card.free_slots,
        held=exclusive and bool(card.used_slots),
    )


def nearest(state: PageCluster, size: SliceSize) -> NearestNode | None:
    """Of all nodes; None: no card is healthy, open and heard of."""
    best: tuple[tuple[int, float, float, str], NearestNode] | None = None
    for node in state.nodes.values():
        if not state.past and silent(node, state.taken_at):
            continue
        lacks = _least(node.cards, size)
        if not lacks:
            continue
        found = NearestNode(node=node.name, lacks=lacks, wanted=size.count)
        missing = size.count - found.fitting
        lacking = sum(lack.rank[0] for lack in lacks)
        order = (missing, lacking, sum(lack.rank[1] for lack in lacks), node.name)
        if best is None or order < best[0]:
            best = (order, found)
    return None if best is None else best[1]


def nearest_cards(state: PageCluster, size: SliceSize, most: int) -> tuple[CardLack, ...]:
    """Of all nodes that are heard of: the cards that lack the least for one slice."""
    cards = (
        card
        for node in state.nodes.values()
        if state.past or not silent(node, state.taken_at)
        for card in node.cards
        if card.healthy and not card.cordoned
    )
    lacks = (lack_of(card, size) for card in cards)
    return tuple(heapq.nsmallest(most, lacks, key=_order))


def _order(lack: CardLack) -> tuple[tuple[int, float], str, int]:
    return lack.rank, lack.card.node, lack.card.index


def _least(cards: Iterable[PageCard], size: SliceSize) -> tuple[CardLack, ...]:
    open_cards = [card for card in cards if card.healthy and not card.cordoned]
    lacks = sorted((lack_of(card, size) for card in open_cards), key=lambda lack: lack.rank)
    return tuple(lacks[: size.count])
