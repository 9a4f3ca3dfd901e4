"""How much of nodes' idle cards is stranded, in milli of a card: what the policy makes least of.

Three parts, each 0 on a node without an idle card:

* what the usual pods could not use as the node is now, each weighted by its part of the arrivals
  (FGD's measure; Weng et al., USENIX ATC 2023);
* what they could not use of two more of their kind, because the host's CPU ends before its cards;
* what is lost of every remainder, however well the rest is used (`prices`).
"""

from __future__ import annotations

import numpy as np

from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.fragmentation.prices import CARD
from hamicommon.placement.fragmentation.states import States
from hamicommon.placement.fragmentation.tables import PERMILLE, Float64, Tables

NOW, AHEAD, REMAINDERS = 0.5, 0.5, 1.0
"""Weights of the three parts."""


def stranded(tables: Tables, states: States) -> Float64:
    """(states,): milli of cards."""
    cpu = np.searchsorted(tables.cpu_levels, states.cpu, side="right")
    half_cpu = np.searchsorted(tables.cpu_levels, states.cpu // 2, side="right")
    # All cores are free of a card on which only memory is granted, yet nobody gets it whole.
    core = np.where(states.idle, states.core, np.minimum(states.core, CARD - 1))
    model, memory = states.model, states.memory
    lone = _lone(tables, model, cpu[:, None], core, memory)
    free = tables.idle_milli(states.core, memory)
    total = free.sum(axis=1)
    # Cards of one node are of one model, but for a few: the largest number stands for them.
    kind = model.max(axis=1)
    whole = np.minimum(states.idle.sum(axis=1), tables.most_cards)
    together = _together(tables, kind, cpu, whole)
    now = total - (free * lone).sum(axis=1) - together * whole * PERMILLE
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
    model2, core2, memory2 = model[rows, second], core[rows, second], memory[rows, second]
    core2 = np.where(split, core2 // 2, core2)
    memory2 = np.where(split, memory2 // 2, memory2)
    one = lone[rows, first] + together
    half = whole // 2
    two = _lone(tables, model2, cpu, core2, memory2) + _together(tables, kind, cpu, half)
    both = _lone(tables, model2, half_cpu, core2, memory2)
    both = both + _together(tables, kind, half_cpu, half)
    ahead = total * (1 - one + 0.5 * two - 0.5 * both)
    lost = tables.lost[model, left // 10].sum(axis=1)
    value: Float64 = NOW * now + AHEAD * ahead + REMAINDERS * lost
    return value


def _lone(tables: Tables, model: Int, cpu: Int, core: Int, memory: Int) -> Float64:
    """Part of the pods that one card with so much left suffices."""
    cpus, cores, memories = tables.levels
    at = ((model * cpus + cpu) * cores + tables.core_level[core]) * memories
    found: Float64 = tables.usable[at + tables.memory_level[memory]]
    return found


def _together(tables: Tables, model: Int, cpu: Int, cards: Int) -> Float64:
    """Part of the pods that want several cards and find so many idle ones."""
    at = (model * tables.levels[0] + cpu) * (tables.most_cards + 1) + cards
    found: Float64 = tables.several[at]
    return found
