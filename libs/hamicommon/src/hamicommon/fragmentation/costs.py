"""Compute what a placement costs: idle card capacity made unusable, and places others will lack.

The policy minimizes stranded milli. It has three parts, each 0 on a node without an idle card:

* what the usual pods could not use as the node is now, each weighted by the pod's part of all
  arrivals (FGD's measure; Weng et al., USENIX ATC 2023);
* what they could not use of two more of their kind, because the host's CPU ends before its cards;
* the loss of every remainder, however well the rest is used (`remainders`).

Prices of places for several cards and of scarce models are bid prices of revenue management, for
one unit of a resource: the amount that a pod would take, times the probability that the pods that
will still come before the cluster is full need all of it. If plenty is left they are 0.

Pods with several cards are rare, and find fewer places with every card granted elsewhere. Most pods
run on any card, some on one or a few models only, because they select them or because their slice
is larger than the others' memory. The part of such cards that a pod with a choice takes has a
price; if no pod is choosy it is 0.
"""

from __future__ import annotations

from math import erfc, exp, sqrt
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hamicommon.fragmentation.demand import PERMILLE, Lots
from hamicommon.fragmentation.remainders import CARD, Float64
from hamicommon.fragmentation.states import States
from hamicommon.fragmentation.tables import Tables
from hamicommon.placement.cluster.cards import Int

_Number = TypeVar("_Number", np.int64, np.float64)

NOW, AHEAD, REMAINDERS = 0.5, 0.5, 1.0
"""Weights of the loss now, of the loss for pods to come, and of useless remainders."""


def stranded_milli(tables: Tables, states: States) -> Float64:
    """Return (states,): thousandths of cards that no usual pod could use (stranded)."""
    cpus, cores, memories = tables.levels
    # A card on which only memory is granted has all cores free, but no pod can get it whole.
    core = np.minimum(states.core, CARD - 1 + states.idle)
    model, memory = states.model, states.memory
    hosts = np.array((states.cpu, states.cpu // 2))
    cpu, half_cpu = tables.cpu_levels.searchsorted(hosts, side="right")
    lone = _lone(tables, model, cpu[:, None], core, memory)
    free = tables.idle_milli(states.core, memory)
    total = _sum(free)
    # Cards of one node are of one model, but for a few: the largest number stands for them.
    kind = np.maximum.reduce(model, axis=1)
    whole = np.minimum(_sum(states.idle), tables.max_cards)
    half = whole // 2
    # With all idle cards, with half of them, and these with half of the CPU.
    at = (kind * cpus + np.array((cpu, cpu, half_cpu))) * (tables.max_cards + 1)
    together, together_half, both_half = tables.several[at + np.array((whole, half, half))]
    now = total - _sum(free * lone) - together * whole * PERMILLE
    left = np.minimum(states.core * 10, memory)
    rows = np.arange(len(left))
    first = left.argmax(axis=1)
    largest = left[rows, first]
    left_without = left.copy()
    left_without[rows, first] = -1
    second = left_without.argmax(axis=1)
    # Two of a kind go on two cards, or both on the half of one.
    split = left_without[rows, second] < largest // 2
    second = np.where(split, first, second)
    parts = 1 + split
    core2, memory2 = core[rows, second] // parts, memory[rows, second] // parts
    two = ((model[rows, second] * cpus + cpu) * cores + tables.core_level[core2]) * memories
    two += tables.memory_level[memory2]
    lone_two, lone_both = tables.usable[np.array((two, two + (half_cpu - cpu) * cores * memories))]
    one = lone[rows, first] + together
    ahead = total * (1 - one + 0.5 * (lone_two + together_half) - 0.5 * (lone_both + both_half))
    lost = _sum(tables.lost[model, states.core, memory // 10])
    value: Float64 = NOW * now + AHEAD * ahead + REMAINDERS * lost
    return value


def _sum(of: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return (states,): sums over the cards; faster than the array's own method for few cards."""
    found: npt.NDArray[_Number] = np.add.reduce(of, axis=1)
    return found


def _lone(tables: Tables, model: Int, cpu: Int, core: Int, memory: Int) -> Float64:
    """Return the fraction of pods that one card with this much free could serve."""
    cpus, cores, memories = tables.levels
    at = ((model * cpus + cpu) * cores + tables.core_level[core]) * memories
    found: Float64 = tables.usable[at + tables.memory_level[memory]]
    return found


MARGIN, ONE_MORE = 1.3, 1.0
"""Factor and addend for the expected number of pods with several cards.

The price of a place kept too long is small, because whatever fits nowhere else still takes it.
"""

MODEL_WEIGHT = 0.06
"""Maximum cost of a thousandth of a scarce card model, in thousandths.

A refused pod's cards are not lost: while pods keep coming, others take them. So the price decides
between places that strand about as much, and does not send pods where they strand more.
"""


def places(lots: Lots, states: States) -> Int:
    """Count by state and lot the pods with several cards that would find room."""
    idle = np.add.reduce(states.idle, axis=1)
    room: Int = idle[:, None] // lots.cards
    np.minimum(room, np.maximum(states.cpu, 0)[:, None] // lots.cpu_milli, out=room)
    room *= lots.accepts[np.maximum.reduce(states.model, axis=1)]
    return room


def place_prices(tables: Tables, available: Int, idle_milli: float) -> Float64:
    """Return by lot the price of losing one place, in thousandths of a card.

    Args:
        tables: the usual pods.
        available: places by lot in the whole cluster.
        idle_milli: idle thousandths in it.
    """
    lots, arrivals = tables.lots, tables.arrivals(idle_milli)
    needed = [
        _poisson_at_least(room, MARGIN * part * arrivals + ONE_MORE)
        for room, part in zip(available.tolist(), lots.rivals.tolist(), strict=True)
    ]
    # Lots with equal numbers of cards use the same places: they count together and share the price.
    found: Float64 = np.array(needed) * lots.milli * lots.parts / lots.rivals
    return found


def grantable(tables: Tables, states: States) -> Float64:
    """Return by state the thousandths of cards that can still be granted."""
    found: Float64 = tables.grantable[states.model, states.core, states.memory // 10].sum(axis=1)
    return found


def model_prices(tables: Tables, model: Int, left: Float64, idle_milli: float) -> Float64:
    """Return by model the price of a thousandth to pods that could use others; see `MODEL_WEIGHT`.

    Args:
        tables: the usual pods.
        model: number by node of the cluster.
        left: grantable thousandths by node.
        idle_milli: idle thousandths in the whole cluster.
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
