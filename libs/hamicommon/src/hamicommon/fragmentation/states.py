"""States of nodes for the policy `fragmentation`: free part of each card, and free host CPU.

Amounts are parts of a card, rounded down: what a slice needs is rounded up (`demand.CardNeed`), so
that nothing is taken for usable which is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hamicommon.fragmentation.demand import PERMILLE
from hamicommon.fragmentation.remainders import CARD, Float64
from hamicommon.placement.cluster.cards import Bools, Cards, Int
from hamicommon.placement.predicates import Needs

_KEY: Int = np.array(
    [2 * (CARD + 1) * (PERMILLE + 1), PERMILLE + 1, 1, (CARD + 1) * (PERMILLE + 1)]
)[:, None, None]
"""Factors that combine model, free parts and idleness of a card into one number."""
_WHOLE: Int = np.array([CARD, PERMILLE])[:, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Nodes as they are or might be after a placement."""

    cards: Int
    """(4, states, places): `model`, `core`, `memory` and `idle` in one array, which copies fast."""
    cpu: Int
    """(states,): free CPU in thousandths of a core."""

    @property
    def model(self) -> Int:
        """(states, places): model number; 0: no card, or none that may be used."""
        model: Int = self.cards[0]
        return model

    @property
    def core(self) -> Int:
        """(states, places): free percent of cores, 0..100."""
        core: Int = self.cards[1]
        return core

    @property
    def memory(self) -> Int:
        """(states, places): free permille of memory, 0..1000."""
        memory: Int = self.cards[2]
        return memory

    @property
    def idle(self) -> Int:
        """(states, places): 1 if the card has no slice, otherwise 0."""
        idle: Int = self.cards[3]
        return idle

    @classmethod
    def empty(cls, states: int, places: int) -> States:
        """Return states without a card."""
        cards = np.zeros((4, states, places), np.int64)
        return cls(cards=cards, cpu=np.zeros(states, np.int64))

    def take(self, states: Int) -> States:
        """Return a copy of some states."""
        return States(cards=self.cards[:, states], cpu=self.cpu[states])

    def less_cpu(self, cpu_milli: int) -> States:
        """Return the same cards on hosts with this much less free CPU."""
        return States(cards=self.cards, cpu=self.cpu - cpu_milli)

    def followed_by(self, others: States) -> States:
        """Return both sets of states as one."""
        return States(
            cards=np.concatenate((self.cards, others.cards), axis=1),
            cpu=np.concatenate((self.cpu, others.cpu)),
        )

    def put(self, states: Int, others: States) -> None:
        """Overwrite some states with others."""
        self.cards[:, states] = others.cards
        self.cpu[states] = others.cpu

    def later_duplicates(self, among: Bools) -> Bools:
        """Return (states, places): whether a later card of `among` is equal to this one.

        A card of which too much is granted looks as a full one does, and may be none of them.
        """
        key = (self.cards * _KEY).sum(axis=0)
        same = key[:, :, None] == key[:, None, :]
        same &= _later(key.shape[1])
        same &= among[:, None, :]
        alike: Bools = np.logical_or.reduce(same, axis=2)
        return alike


@lru_cache(maxsize=32)
def _later(width: int) -> Bools:
    """Return (width, width): whether the second place comes after the first."""
    return np.triu(np.ones((width, width), np.bool_), k=1)


def states_of(cards: Cards, cpu: Int) -> States:
    """Return the present states of the table's rows."""
    return States(cards=_amounts_of(cards), cpu=cpu)


def _amounts_of(cards: Cards) -> Int:
    """Return (4, nodes, places) as in `States.cards`."""
    usable = (cards.status == 0) & (cards.free_slots > 0) & (cards.model != 0)
    found = np.empty((4, *usable.shape), np.int64)
    found[0] = cards.model
    total = np.array((cards.core, cards.memory))
    # Rounded down; all of it is free where the card has none to give.
    part = np.array((cards.free_core, cards.free_memory)) * _WHOLE
    part //= np.maximum(total, 1)
    np.copyto(part, _WHOLE, where=total <= 0)
    np.minimum(part, _WHOLE, out=part)
    np.maximum(part, 0, out=found[1:3])
    found[3] = cards.free_slots >= cards.slots
    found *= usable
    return found


class StatesAfter(NamedTuple):
    """Possible states of rows after a pod with one request; each row has one or more."""

    states: States
    row: Int
    """(outcomes,): number of the row."""
    taken: Int
    """(outcomes, count): cards that the pod takes, in the order picked."""

    def best(self, stranded: Float64, numa: Int) -> Int:
        """Return (rows,): the outcome of each row that strands least; `numa` is (rows, places).

        Among equal cards that of the highest NUMA node wins, and there the last: the walk of a
        container takes them in that order, and compares in as many digits (`choice/ordering.py`).
        """
        if self.taken.shape[1] > 1:
            return self.row
        rows, width = numa.shape
        cost = np.full((rows, width), np.inf, np.float32)
        number = np.zeros((rows, width), np.int64)
        at = self.row, self.taken[:, 0]
        cost[at], number[at] = stranded, np.arange(len(stranded))
        equal = cost == cost.min(axis=1, keepdims=True)
        preferred = np.where(equal, numa, np.iinfo(np.int64).min)
        place = width - 1 - preferred[:, ::-1].argmax(axis=1)
        best: Int = number[np.arange(rows), place]
        return best


def outcomes(now: States, cards: Cards, need: Needs, count: int, fitting: Bools) -> StatesAfter:
    """Return the outcomes of taking `count` cards of every row; `now` has the CPU left after it.

    One slice may continue any card where it fits: of cards that are alike only the last is asked.
    Several go where the walk of a container would put them, on the fullest cards.
    """
    memory, core, slots = need.memory_on(cards), need.core_on(cards), need.slots_on(cards)
    if count == 1:
        rows, places = np.nonzero(fitting & ~now.later_duplicates(fitting))
        then = now.take(rows)
        with_slice = _amounts_of(cards.less(slots=slots, memory=memory, core=core))
        then.cards[:, np.arange(len(rows)), places] = with_slice[:, rows, places]
        return StatesAfter(then, rows, places[:, None])
    full = np.where(fitting, cards.free_core + cards.free_memory, np.iinfo(np.int64).max)
    walked = np.lexsort((-cards.numa[:, ::-1], full[:, ::-1]), axis=1)[:, :count]
    taken = np.zeros(fitting.shape, np.bool_)
    places = fitting.shape[1] - 1 - walked
    np.put_along_axis(taken, places, values=True, axis=1)
    after = cards.less(slots=taken * slots, memory=taken * memory, core=taken * core)
    return StatesAfter(states_of(after, now.cpu), np.arange(len(fitting)), places)
