"""Nodes as fragmentation is measured on them: how much of every card is free, and host CPU.

Amounts are parts of a card, rounded down: what a slice needs is rounded up (`demand.CardNeed`), so
that nothing is taken for usable which is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hamicommon.placement.cluster.cards import Bools, Cards, Int
from hamicommon.placement.fragmentation.demand import PERMILLE
from hamicommon.placement.fragmentation.prices import CARD


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Nodes as they are or might be; arrays are (states, places) but for `cpu`."""

    model: Int
    """0 where there is no card, or none that may be used."""
    core: Int
    """Free percent, 0..100."""
    memory: Int
    """Free permille, 0..1000."""
    idle: Bools
    """Nobody has a slice of the card."""
    cpu: Int
    """(states,): free thousandths of a core."""

    @classmethod
    def empty(cls, states: int, places: int) -> States:
        """Without a card."""
        return cls(
            model=np.zeros((states, places), np.int64),
            core=np.zeros((states, places), np.int64),
            memory=np.zeros((states, places), np.int64),
            idle=np.zeros((states, places), np.bool_),
            cpu=np.zeros(states, np.int64),
        )

    def take(self, states: Int) -> States:
        """A copy of some of them."""
        return States(
            model=self.model[states],
            core=self.core[states],
            memory=self.memory[states],
            idle=self.idle[states],
            cpu=self.cpu[states],
        )

    def followed_by(self, others: States) -> States:
        """A copy of both."""
        return States(
            model=np.concatenate((self.model, others.model)),
            core=np.concatenate((self.core, others.core)),
            memory=np.concatenate((self.memory, others.memory)),
            idle=np.concatenate((self.idle, others.idle)),
            cpu=np.concatenate((self.cpu, others.cpu)),
        )

    def put(self, states: Int, others: States) -> None:
        """Writes the others in place of some of them."""
        self.model[states] = others.model
        self.core[states] = others.core
        self.memory[states] = others.memory
        self.idle[states] = others.idle
        self.cpu[states] = others.cpu

    def later_alike(self) -> Bools:
        """(states, places): whether a later card of the node is just as this one."""
        key = ((self.model * 2 + self.idle) * (CARD + 1) + self.core) * (PERMILLE + 1) + self.memory
        same = key[:, :, None] == key[:, None, :]
        same &= _later(key.shape[1])
        alike: Bools = same.any(axis=2)
        return alike


@lru_cache(maxsize=32)
def _later(width: int) -> Bools:
    """(width, width): whether the second place comes after the first."""
    return np.triu(np.ones((width, width), np.bool_), k=1)


def states_of(cards: Cards, cpu: Int) -> States:
    """The table's rows as they are."""
    model, core, memory, idle = amounts_of(cards)
    return States(model=model, core=core, memory=memory, idle=idle, cpu=cpu)


def amounts_of(cards: Cards) -> tuple[Int, Int, Int, Bools]:
    """Model, free percent of cores, free permille of memory, and whether nobody has a slice."""
    usable = (cards.status == 0) & (cards.free_slots > 0) & (cards.model != 0)
    return (
        cards.model * usable,
        _part(cards.free_core, cards.core, CARD) * usable,
        _part(cards.free_memory, cards.memory, PERMILLE) * usable,
        usable & (cards.free_slots >= cards.slots),
    )


def _part(free: Int, total: Int, whole: int) -> Int:
    """How much of `whole` is free, rounded down; all of it where the card has none to give."""
    part = free * whole // np.maximum(total, 1)
    part[total <= 0] = whole
    np.minimum(part, whole, out=part)
    return np.maximum(part, 0, out=part)
