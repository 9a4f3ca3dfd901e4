"""What pods that need certain models of cards will miss: the price of such a card.

Most pods run on any card, some on one model or a few alone, be it by what they select or because
their slice is larger than the others' memory. Whatever a pod with the choice takes of such cards
has a price as long as the pods still to come before the cluster is full may need it: the
probability that together they need more than is left (the bid price of revenue management). With
plenty of them it is 0, and where nobody is choosy there is none.
"""

from __future__ import annotations

from math import erfc, sqrt

import numpy as np

from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.fragmentation.demand import Float64
from hamicommon.placement.fragmentation.states import States
from hamicommon.placement.fragmentation.tables import Tables

WEIGHT = 0.06
"""Part of a milli that a milli costs at most. A pod that is refused for it is not all that is lost:
while pods keep coming, others take what it leaves. So the price decides between places that strand
about as much, and does not send pods where they strand more."""


def worth(tables: Tables, states: States) -> Float64:
    """(states,): milli that can still be granted: what is free but for what is lost of it."""
    found: Float64 = tables.worth[states.model, states.core, states.memory // 10].sum(axis=1)
    return found


def prices(tables: Tables, model: Int, worth: Float64, free_milli: float) -> Float64:
    """(models,): what a milli of each model costs who has the choice, up to `WEIGHT`.

    Args: model, worth: (nodes,) of all nodes; free_milli: what is idle in the whole cluster.
    """
    confined = tables.confined
    found = np.zeros(confined.models.shape[1])
    if not len(confined.models) or not tables.mean_milli:
        return found
    arrivals = free_milli / tables.mean_milli
    by_model = np.bincount(model, weights=worth, minlength=len(found))
    left = confined.models @ by_model
    for number, room in enumerate(left.tolist()):
        expected = arrivals * float(confined.milli[number])
        deviation = sqrt(arrivals * float(confined.square[number]))
        price = WEIGHT * _above(room, expected, deviation)
        np.maximum(found, price * confined.models[number], out=found)
    return found


def _above(room: float, expected: float, deviation: float) -> float:
    """Probability that a normal number is above `room`."""
    if deviation <= 0:
        return 1.0 if expected > room else 0.0
    return erfc((room - expected) / (deviation * sqrt(2))) / 2
