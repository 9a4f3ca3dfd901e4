"""Milli of nodes' idle cards that are stranded: the amount that the policy keeps small.

Three parts, each 0 on a node without an idle card:

* what the usual pods could not use as the node is now, each weighted by its part of the arrivals
  (FGD's measure; Weng et al., USENIX ATC 2023);
* what they could not use of two more of their kind, because the host's CPU ends before its cards;
* what is lost of every remainder, however well the rest is used (`remainders`).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hamicommon.fragmentation.demand import PERMILLE
from hamicommon.fragmentation.remainders import CARD, Float64
from hamicommon.fragmentation.states import States
from hamicommon.fragmentation.tables import Tables
from hamicommon.placement.cluster.cards import Int

_Number = TypeVar("_Number", np.int64, np.float64)

NOW, AHEAD, REMAINDERS = 0.5, 0.5, 1.0
"""Weights of the three parts."""


def stranded(tables: Tables, states: States) -> Float64:
    """(states,): milli of cards that are stranded."""
    cpus, cores, memories = tables.levels
    # All cores are free of a card on which only memory is granted, yet nobody gets it whole.
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
    """(states,): sum over the places; the method of an array takes twice as long for a few."""
    found: npt.NDArray[_Number] = np.add.reduce(of, axis=1)
    return found


def _lone(tables: Tables, model: Int, cpu: Int, core: Int, memory: Int) -> Float64:
    """Part of the pods for which one card with so much left is enough."""
    cpus, cores, memories = tables.levels
    at = ((model * cpus + cpu) * cores + tables.core_level[core]) * memories
    found: Float64 = tables.usable[at + tables.memory_level[memory]]
    return found
