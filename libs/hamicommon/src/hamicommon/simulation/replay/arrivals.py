"""The order in which pods arrive, and the order of nodes that breaks ties, by a seed.

As in the published runs (hkust-adsl/kubernetes-scheduler-simulator): the trace is shuffled, and
then tuned to a load. Too little demand: pods drawn with replacement are appended, up to the draw
that would pass the target by the share of ONE of its cards. Too much: random pods are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hamicommon.domain.ids import NodeName
from hamicommon.simulation.replay.trace import Trace, TraceNode, TracePod, demand_milli


def arrivals(trace: Trace, seed: int, *, load: float, card_memory_mib: int = 0) -> list[TracePod]:
    """The trace's pods in a random order, tuned to `load` (1.3: 130 % of the cards are asked)."""
    random = np.random.default_rng(seed)
    by_name = sorted(trace.pods, key=lambda pod: pod.name)
    order = [by_name[at] for at in random.permutation(len(by_name)).tolist()]
    target = load * trace.cards * 1000
    demand = sum(demand_milli(pod, card_memory_mib) for pod in order)
    if demand > target:
        return _thinned(order, demand, target, card_memory_mib, random)
    while True:
        drawn = by_name[int(random.integers(len(by_name)))]
        whole = demand_milli(drawn, card_memory_mib)
        if demand + whole / max(drawn.cards, 1) > target:
            return order
        order.append(drawn)
        demand += whole


def _thinned(
    order: Sequence[TracePod],
    demand: int,
    target: float,
    card_memory_mib: int,
    random: np.random.Generator,
) -> list[TracePod]:
    """Random pods are left out until the demand is not above the target."""
    kept = [True] * len(order)
    for at in random.permutation(len(order)).tolist():
        if demand <= target:
            break
        kept[at] = False
        demand -= demand_milli(order[at], card_memory_mib)
    return [pod for pod, stays in zip(order, kept, strict=True) if stays]


def tie_order(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """The nodes under names whose order is random, because the first by name wins a tie.

    Which is drawn apart from the arrivals: all policies of one seed meet the same of both.
    """
    random = np.random.default_rng([seed, 1])
    width = len(str(len(nodes)))
    by_name = sorted(nodes, key=lambda node: node.name)
    return [
        replace(node, name=NodeName(f"{number:0{width}d}-{node.name}"))
        for node, number in zip(by_name, random.permutation(len(nodes)).tolist(), strict=True)
    ]
