"""Prices of what pods still to come will miss: places for several cards, and scarce models.

Both are bid prices of revenue management, for one unit of a resource: what a pod would take of it,
times the probability that the pods still to come before the cluster is full need all of it. With
plenty of it they are 0.

Pods with several cards are rare and find fewer places with every card that is given elsewhere. Most
pods run on any card, some on one model or a few only, be it by what they select or because their
slice is larger than the others' memory. What a pod with the choice takes of such cards has a price;
where nobody is choosy there is none.
"""

from __future__ import annotations

from math import erfc, exp, sqrt

import numpy as np

from hamicommon.fragmentation.demand import Lots
from hamicommon.fragmentation.remainders import Float64
from hamicommon.fragmentation.states import States
from hamicommon.fragmentation.tables import Tables
from hamicommon.placement.cluster.cards import Int

MARGIN, ONE_MORE = 1.3, 1.0
"""Pods with several cards that are expected, times and plus: the price of a place kept too long is
small, because whatever fits nowhere else still takes it."""

MODEL_WEIGHT = 0.06
"""Part of a milli that a milli of a scarce model costs at most. A pod that is refused for it is not
all that is lost: while pods keep coming, others take what it leaves. So the price decides between
places that strand about as much, and does not send pods where they strand more."""


def places(lots: Lots, states: States) -> Int:
    """Count by state and lot how many pods with several cards would find room."""
    idle = np.add.reduce(states.idle, axis=1)
    room: Int = idle[:, None] // lots.cards
    np.minimum(room, np.maximum(states.cpu, 0)[:, None] // lots.cpu_milli, out=room)
    room *= lots.accepts[np.maximum.reduce(states.model, axis=1)]
    return room


def place_prices(tables: Tables, available: Int, idle_milli: float) -> Float64:
    """Price by lot the loss of one place, in milli.

    Args:
        tables: the usual pods.
        available: places by lot in the whole cluster.
        idle_milli: what is idle in it.
    """
    lots, arrivals = tables.lots, tables.arrivals(idle_milli)
    needed = [
        _poisson_at_least(room, MARGIN * part * arrivals + ONE_MORE)
        for room, part in zip(available.tolist(), lots.rivals.tolist(), strict=True)
    ]
    # Lots of as many cards want the same places: they count together, and share the price.
    found: Float64 = np.array(needed) * lots.milli * lots.parts / lots.rivals
    return found


def grantable(tables: Tables, states: States) -> Float64:
    """Milli by state that can still be granted: what is free but for what is lost of it."""
    found: Float64 = tables.grantable[states.model, states.core, states.memory // 10].sum(axis=1)
    return found


def model_prices(tables: Tables, model: Int, left: Float64, idle_milli: float) -> Float64:
    """Price by model one milli for pods that have the choice, up to `MODEL_WEIGHT`.

    Args:
        tables: the usual pods.
        model: of each node of the cluster.
        left: what can be granted on each node.
        idle_milli: what is idle in the whole cluster.
    """
    confined = tables.confined
    found = np.zeros(confined.models.shape[1])
    if not len(confined.models) or not tables.mean_milli:
        return found
    arrivals = tables.arrivals(idle_milli)
    by_model = np.bincount(model, weights=left, minlength=len(found))
    for number, room in enumerate((confined.models @ by_model).tolist()):
        expected = arrivals * float(confined.milli[number])
        deviation = sqrt(arrivals * float(confined.square[number]))
        price = MODEL_WEIGHT * _normal_above(room, expected, deviation)
        np.maximum(found, price * confined.models[number], out=found)
    return found


def _poisson_at_least(count: int, expected: float) -> float:
    if count <= 0:
        return 1.0
    if expected <= 0 or count > expected + 8 * expected**0.5 + 16:
        return 0.0
    if expected > 500:
        return 1.0 if count <= expected else 0.0
    term, below = exp(-expected), 0.0
    for number in range(count):
        below += term
        term *= expected / (number + 1)
    return min(max(1.0 - below, 0.0), 1.0)


def _normal_above(room: float, expected: float, deviation: float) -> float:
    if deviation <= 0:
        return 1.0 if expected > room else 0.0
    return erfc((room - expected) / (deviation * sqrt(2))) / 2
