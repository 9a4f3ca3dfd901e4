"""Which Kunlun cards work well together: the graph of eight cards in two wings (protocol 1.9).

Both Kunlun vendors choose by it. The wings are positions in the preference list, as in HAMi, not
the cards' own indexes; only the links between the wings go by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WING = 4
"""Positions 0-3 of the list are the left wing, the rest is the right one."""

PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))
"""Cards of different wings that are linked, by index."""
QUADS = (
    (0, 1, 4, 5),
    (2, 3, 6, 7),
    (0, 2, 4, 6),
    (1, 3, 5, 7),
    (0, 3, 4, 7),
    (1, 2, 5, 6),
)
"""Two pairs of cards each, of different wings, that are linked, by index."""

_ROOM = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,)}
"""For each legal count below eight: how many cards a wing should have free, the best first."""


def choose(indexes: Sequence[int], free: Sequence[bool], count: int) -> tuple[int, ...]:
    """Positions of the `count` cards to take, in the order taken; empty when none go together.

    `indexes` and `free` are by position in the preference list.
    """
    if count == 2 * WING:
        whole = tuple(range(2 * WING))
        return whole if len(free) >= 2 * WING and all(free[: 2 * WING]) else ()
    left = [position for position in range(len(free)) if free[position] and position < WING]
    right = [position for position in range(len(free)) if free[position] and position >= WING]
    if max(len(left), len(right)) >= count:
        for room in _ROOM.get(count, ()):
            for wing in (left, right):
                if len(wing) == room:
                    return tuple(wing[:count])
    return _across(indexes, (*left, *right), count)


def _across(indexes: Sequence[int], free: Sequence[int], count: int) -> tuple[int, ...]:
    """Cards of both wings that are linked."""
    position = {indexes[place]: place for place in free}
    groups = {2: PAIRS, 4: QUADS}.get(count, ())
    feasible = [group for group in groups if position.keys() >= set(group)]
    if not feasible:
        return ()
    best = feasible[0]
    if count == WING and len(free) == WING + 2:
        # What is left over should still be a pair that is linked.
        kept = (group for group in feasible if _linked(position.keys() - set(group)))
        best = next(kept, feasible[-1])
    return tuple(position[index] for index in best)


def _linked(rest: Iterable[int]) -> bool:
    first, second = sorted(rest)
    same_wing = second < 2 * WING and first // WING == second // WING
    return same_wing or (first, second) in PAIRS


def bubbles(used: Iterable[int]) -> int:
    """How much the used cards, by index, spoil their wings for requests to come."""
    wings = [0, 0]
    for index in used:
        wings[index >= WING] += 1
    if wings == [0, 0]:
        return 1
    return sum({WING: 0, 1: 2}.get(taken, 1) for taken in wings)
