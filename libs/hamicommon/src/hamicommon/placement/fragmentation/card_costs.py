"""What a slice strands on each card of a node that could give it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hamicommon.placement.cluster.cards import Bools, Cards, Int
from hamicommon.placement.fragmentation.states import States, amounts_of
from hamicommon.placement.fragmentation.stranded import stranded
from hamicommon.placement.fragmentation.tables import Float64, Tables
from hamicommon.placement.predicates import Needs


class CardCosts(NamedTuple):
    """What it strands by card; the states are those of the cards that were asked."""

    stranded: Float64
    """(rows, places): milli on the whole node afterwards; infinite where it was not asked."""
    states: States
    number: Int
    """(rows, places): which of the states."""


def costs_by_card(
    tables: Tables, now: States, cards: Cards, need: Needs, fitting: Bools
) -> CardCosts:
    """For one slice on each of the cards where it fits; `now` has the CPU that is left after it.

    Of a node's cards that are alike only the last is asked, as the walk of a container takes it
    first.
    """
    cost = np.full(fitting.shape, np.inf)
    number = np.zeros(fitting.shape, np.int64)
    rows, places = np.nonzero(fitting & ~now.later_alike())
    then = now.take(rows)
    pairs = np.arange(len(rows))
    for name, amount in zip(
        ("model", "core", "memory", "idle"),
        amounts_of(_with_slice(cards, need, rows, places)),
        strict=True,
    ):
        getattr(then, name)[pairs, places] = amount
    cost[rows, places] = stranded(tables, then)
    number[rows, places] = pairs
    return CardCosts(cost, then, number)


def _with_slice(cards: Cards, need: Needs, rows: Int, places: Int) -> Cards:
    """(pairs,): the cards at these places, each with the slice on it."""
    alone = Cards(**{name: getattr(cards, name)[rows, places] for name in Cards.__slots__})
    alone.free_memory -= need.memory_on(alone)
    alone.free_core -= need.core_on(alone)
    alone.free_slots -= need.slots_on(alone)
    return alone
