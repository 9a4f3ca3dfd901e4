"""Compute the capacity that may still be granted, for metrics and the overview page. Pure.

Input: the cards of one reading. Output: how many more pods of a few usual sizes fit, by memory,
slots and cores only (annotations, quotas and selectors of a pod may allow fewer), and the free
memory that no pod can get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from enum import StrEnum

from hami_metrics.domain.cluster import ClusterCard

MIB = 1024 * 1024
MIB_PER_GIB = 1024


class RequestClass(StrEnum):
    """Sizes of requests that are counted."""

    GIB_8 = "8gib"
    """Slice of 8 GiB, as for inference."""
    GIB_40 = "40gib"
    """Slice of 40 GiB, as for training."""
    CARD = "card"
    """Whole idle card."""
    NODE = "node"
    """Eight idle cards on one node."""


_SLICES_GIB = {RequestClass.GIB_8: 8, RequestClass.GIB_40: 40}
CARDS_OF_A_NODE = 8


def fitting_pods(cards: tuple[ClusterCard, ...], silent: Set[str]) -> dict[RequestClass, int]:
    """Return how many more pods of each class fit now. `silent`: nodes with silent agents."""
    fitting = dict.fromkeys(RequestClass, 0)
    idle: Counter[str] = Counter()
    for card in cards:
        if card.node in silent or not _has_room(card):
            continue
        for one, gib in _SLICES_GIB.items():
            by_memory = (card.memory_mib - card.used_memory_mib) // (gib * MIB_PER_GIB)
            fitting[one] += max(0, min(by_memory, card.slots - card.used_slots))
        idle[card.node] += not card.used_slots
    fitting[RequestClass.CARD] = idle.total()
    fitting[RequestClass.NODE] = sum(count >= CARDS_OF_A_NODE for count in idle.values())
    return fitting


def unallocatable_bytes(cards: tuple[ClusterCard, ...], silent: Set[str]) -> int:
    """Return free memory that no pod can get: no slot or cores left, unhealthy, or cordoned."""
    return MIB * sum(
        max(0, card.memory_mib - card.used_memory_mib)
        for card in cards
        if card.node in silent or not _has_room(card)
    )


def _has_room(card: ClusterCard) -> bool:
    return (
        card.healthy
        and not card.cordoned
        and card.used_slots < card.slots
        and card.used_core_percent < card.core_percent
    )
