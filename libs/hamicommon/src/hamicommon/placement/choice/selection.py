"""Which of the cards that fit are taken, for nodes that may have enough of them.

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
"""Above this many subsets (8 of 18 cards) the topology choice grows a set card by card instead."""


class NumaWalk(NamedTuple):
    """Result of walking nodes in NUMA groups."""

    places: Int
    """(nodes, places): in the order picked; only the first `found` of a row count."""
    found: Int
    """(nodes,): picks; fewer than asked for where the node does not fit."""
    dropped: Int
    """(nodes,): picks that were dropped because their group ended short."""
    largest: Int
    """(nodes,): picks of the group that had most; of the last one where whole groups are walked."""


def first_that_fit(fitting: Bools, order: Int, count: int) -> Int:
    """(nodes, count): the most preferred places that fit; every node must have `count` of them."""
    walked = order[:, ::-1]
    fits = np.take_along_axis(fitting, walked, axis=1)
    chosen = fits & (fits.cumsum(axis=1) <= count)
    picked: Int = walked[chosen].reshape(-1, count)
    return picked


def walk_numa(codes: Codes, order: Int, numa: Int, count: int, *, all_of: bool) -> NumaWalk:
    """Walks every node's cards, all of one slice's cards on one NUMA node.

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
    """`count` of the places, by how well they are connected; `pairs`: (places, places) of the node.

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
        return _grown(places, count, scores)
    subsets = _subsets(len(places), count)
    sums = np.zeros(len(subsets), np.int64)
    for i, j in combinations(range(count), 2):
        sums += scores[subsets[:, i], subsets[:, j]]
    return tuple(places[i] for i in subsets[int(sums.argmax())].tolist())


def _grown(places: tuple[int, ...], count: int, scores: Int) -> tuple[int, ...]:
    """A set grown from its best pair: always the card that is best connected to those taken."""
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
    """(subsets, count): all subsets in lexicographic order."""
    return np.array(list(combinations(range(size), count)), np.int64)
