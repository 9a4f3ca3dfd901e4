"""Cards that belong together: taking few groups of them, and a score for it.

Dies of a card (Vastai, protocol 1.14), chips of a network (Ascend, 1.16).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from hamicommon.domain.devices import GpuDevice

Group = Callable[[GpuDevice], Hashable]
"""Names the group of a card."""


def least_groups(cards: Sequence[GpuDevice], count: int, *, group: Group) -> list[GpuDevice]:
    """`count` of the cards, from the groups with most of them first.

    Within a group in the order given; of equal groups the one whose first card comes first (HAMi
    leaves that to chance). All of them, in the order given, when there are no more than `count`.
    """
    if len(cards) <= count:
        return list(cards)
    groups: dict[Hashable, list[GpuDevice]] = {}
    for card in cards:
        groups.setdefault(group(card), []).append(card)
    largest_first = sorted(groups.values(), key=len, reverse=True)
    return [card for members in largest_first for card in members][:count]


def largest_share(cards: Sequence[GpuDevice], *, group: Group) -> float:
    """The part of the cards that are in their largest group, above 0 up to 1; 0 for no card."""
    if not cards:
        return 0.0
    return max(Counter(group(card) for card in cards).values()) / len(cards)
