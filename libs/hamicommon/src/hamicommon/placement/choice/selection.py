"""Choose among the cards that fit on nodes with enough of them.

Plain requests take the first that fit; NUMA binding walks groups of cards; both for all nodes at
once. The topology choice looks at one node (protocol 1.0.4 rule 4, 1.1 "Fit specialities").
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from hamicommon.placement.cluster.cards import Bools, Codes, Int
from hamicommon.placement.rules import BEFORE_NUMA, Rule

_MAX_SUBSETS = 50_000
"""Maximum subsets (8 of 18 cards) that are compared; above, a set is grown card by card."""


class NumaWalk(NamedTuple):
    """Result of choosing cards within NUMA groups."""

    places: Int
    """(nodes, places): places in the order picked; only the first `found` of a row count."""
    found: Int
    """(nodes,): number of picks; fewer than asked for if the node does not fit."""
    dropped: Int
    """(nodes,): picks that were dropped because their NUMA group had too few cards."""
    largest: Int
    """(nodes,): picks of the largest group; of the last one if groups are taken whole."""


def first_that_fit(fitting: Bools, order: Int, count: int) -> Int:
    """Return (nodes, count): the most preferred places that fit; each node must have `count`."""
    walked = order[:, ::-1]
    fits = np.take_along_axis(fitting, walked, axis=1)
    chosen = fits & (fits.cumsum(axis=1) <= count)
    picked: Int = walked[chosen].reshape(-1, count)
    return picked


def walk_numa(codes: Codes, order: Int, numa: Int, count: int, *, all_of: bool) -> NumaWalk:
    """Choose cards on every node so that all of a slice's cards are on one NUMA node.

    Args: codes, order, numa: (nodes, places); all_of: collect whole groups (for the topology
    choice) in place of the first `count`. Then the last group decides, as in HAMi: a complete one
    is dropped, too, when another follows, and uncounted (protocol 1.0.4 rule 4, ADR 8).
    """
    nodes, width = codes.shape
    rows = np.arange(nodes)
    places = np.zeros((nodes, width), np.int64)
    found, dropped = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    largest = np.zeros(nodes, np.int64)
    group = np.full(nodes, np.iinfo(np.int64).min)
    done = np.zeros(nodes, np.bool_)
    for column in range(width - 1, -1, -1):
        place = order[:, column]
        code, side = codes[rows, place], numa[rows, place]
        part = ~np.isin(code, BEFORE_NUMA) & ~done
        changed = part & (side != group)
        if not all_of:
            dropped += np.where(changed, found, 0)
        found[changed] = 0
        group = np.where(changed, side, group)
        picked = np.flatnonzero((code == Rule.FITS) & part & ~done)
        places[picked, found[picked]] = place[picked]
        found[picked] += 1
        largest = found.copy() if all_of else np.maximum(largest, found)
        if not all_of:
            done |= found == count
    return NumaWalk(places, found, dropped, largest)


def best_connected(places: tuple[int, ...], count: int, pairs: Int | None) -> tuple[int, ...]:
    """Return `count` of the places, those best connected by `pairs`, (places, places).

    One card: the one with the least connection to the others, so that good pairs stay whole.
    Several: the set with the greatest sum over its pairs. The first in the given order wins a tie.
    """
    if len(places) == count or pairs is None:
        return places[:count]
    scores = pairs[np.ix_(places, places)]
    if count == 1:
        others = scores.sum(axis=1) - scores.diagonal()
        return (places[int(others.argmin())],)
    if comb(len(places), count) > _MAX_SUBSETS:
        return _grow_set(places, count, scores)
    subsets = _subsets(len(places), count)
    sums = np.zeros(len(subsets), np.int64)
    for i, j in combinations(range(count), 2):
        sums += scores[subsets[:, i], subsets[:, j]]
    return tuple(places[i] for i in subsets[int(sums.argmax())].tolist())


def _grow_set(places: tuple[int, ...], count: int, scores: Int) -> tuple[int, ...]:
    """Return a set of places grown from the best pair, adding the best connected card each time."""
    both = np.triu(scores + scores.T, k=1)
    taken = [int(i) for i in np.unravel_index(int(both.argmax()), both.shape)]
    if taken[0] == taken[1]:
        taken = [0, 1]
    while len(taken) < count:
        gain = scores[:, taken].sum(axis=1) + scores[taken, :].sum(axis=0)
        gain[taken] = np.iinfo(np.int64).min
        taken.append(int(gain.argmax()))
    return tuple(places[i] for i in sorted(taken))


@lru_cache(maxsize=32)
def _subsets(size: int, count: int) -> Int:
    """Return (subsets, count): all subsets in lexicographic order."""
    return np.array(list(combinations(range(size), count)), np.int64)
