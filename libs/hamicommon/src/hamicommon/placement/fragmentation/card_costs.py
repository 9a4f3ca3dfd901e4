"""The states that a plain pod could leave a node in, and which of them strands least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hamicommon.placement.cluster.cards import Bools, Cards, Int
from hamicommon.placement.fragmentation.demand import Float64
from hamicommon.placement.fragmentation.states import States, amounts_of, states_of
from hamicommon.placement.fragmentation.stranded import stranded
from hamicommon.placement.fragmentation.tables import Tables
from hamicommon.placement.predicates import Needs


class CardOutcomes(NamedTuple):
    """What the pod could do, on any of the rows that were asked: every row has one or more."""

    states: States
    row: Int
    """(outcomes,): which of the rows."""
    taken: Int
    """(outcomes, count): the cards that it takes there, in the order picked."""

    def best(self, stranded: Float64, numa: Int) -> Int:
        """(rows,): which outcome of each row strands least; `numa` is (rows, places).

        Of equal cards that of the highest NUMA node, and there the last: the walk of a container
        takes them in that order, and compares in as many digits (`choice/ordering.py`).
        """
        if self.taken.shape[1] > 1:
            return self.row
        rows, width = numa.shape
        cost = np.full((rows, width), np.inf, np.float32)
        number = np.zeros((rows, width), np.int64)
        at = self.row, self.taken[:, 0]
        cost[at], number[at] = stranded, np.arange(len(stranded))
        equal = cost == cost.min(axis=1, keepdims=True)
        place = _last_of_highest(np.where(equal, numa, np.iinfo(np.int64).min))
        best: Int = number[np.arange(rows), place]
        return best


def _last_of_highest(of: Int) -> Int:
    """(rows,): the place."""
    last: Int = of.shape[1] - 1 - of[:, ::-1].argmax(axis=1)
    return last


def outcomes(now: States, cards: Cards, need: Needs, count: int, fitting: Bools) -> CardOutcomes:
    """For `count` cards of every row; `now` has the CPU that is left after it.

    One slice may go on any card where it fits: of cards that are alike only the last is asked.
    Several go where the walk of a container would put them, on the fullest cards.
    """
    if count == 1:
        rows, places = np.nonzero(fitting & ~now.later_alike(fitting))
        then = now.take(rows)
        with_slice = amounts_of(
            cards.less(
                slots=need.slots_on(cards),
                memory=need.memory_on(cards),
                core=need.core_on(cards),
            )
        )
        then.cards[:, np.arange(len(rows)), places] = with_slice[:, rows, places]
        return CardOutcomes(then, rows, places[:, None])
    full = np.where(fitting, cards.free_core + cards.free_memory, np.iinfo(np.int64).max)
    walked = np.lexsort((-cards.numa[:, ::-1], full[:, ::-1]), axis=1)[:, :count]
    taken = np.zeros(fitting.shape, np.bool_)
    places = fitting.shape[1] - 1 - walked
    np.put_along_axis(taken, places, values=True, axis=1)
    after = cards.fresh()
    after.free_memory -= taken * need.memory_on(cards)
    after.free_core -= taken * need.core_on(cards)
    after.free_slots -= taken * need.slots_on(cards)
    return CardOutcomes(states_of(after, now.cpu), np.arange(len(fitting)), places)


def stranded_by_card(
    tables: Tables, now: States, cards: Cards, need: Needs, fitting: Bools
) -> Float64:
    """(rows, places): milli that one slice there strands; infinite where none was asked."""
    found = outcomes(now, cards, need, 1, fitting)
    cost = np.full(fitting.shape, np.inf)
    cost[found.row, found.taken[:, 0]] = stranded(tables, found.states)
    return cost
