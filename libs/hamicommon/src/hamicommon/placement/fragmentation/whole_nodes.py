"""What pods with several cards will miss: the price of a place where one of them could go.

Such pods are rare and find fewer places with every card that is given elsewhere. A place has a
price as long as the pods that are still to come before the cluster is full may need it: what the
pod takes, times the probability that at least as many come as there are places (the bid price of
revenue management, for one unit of a resource). With many places it is 0.
"""

from __future__ import annotations

from math import exp

import numpy as np

from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.fragmentation.demand import Float64, Lots
from hamicommon.placement.fragmentation.states import States
from hamicommon.placement.fragmentation.tables import Tables

MARGIN, ONE_MORE = 1.3, 1.0
"""So many pods more than expected are reckoned with: the price of a place kept too long is small,
because whatever fits nowhere else still takes it."""


def places(lots: Lots, states: States) -> Int:
    """(states, lots): how many pods of each lot would find room."""
    idle = np.add.reduce(states.idle, axis=1)
    room: Int = idle[:, None] // lots.cards
    np.minimum(room, np.maximum(states.cpu, 0)[:, None] // lots.cpu_milli, out=room)
    room *= lots.accepts[np.maximum.reduce(states.model, axis=1)]
    return room


def prices(tables: Tables, available: Int, free_milli: float) -> Float64:
    """(lots,): milli that the loss of one place costs.

    Args: available: (lots,) places in the whole cluster; free_milli: what is idle in it.
    """
    lots = tables.lots
    arrivals = free_milli / tables.mean_milli if tables.mean_milli else 0.0
    needed = [
        _at_least(room, MARGIN * part * arrivals + ONE_MORE)
        for room, part in zip(available.tolist(), lots.rivals.tolist(), strict=True)
    ]
    # Lots of as many cards want the same places: they count together, and share the price.
    found: Float64 = np.array(needed) * lots.milli * lots.parts / lots.rivals
    return found


def _at_least(count: int, expected: float) -> float:
    """Probability that a Poisson number is not below `count`."""
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
