"""Order a node's cards by preference, ascending: the LAST card is the most preferred.

Protocol 4.6 ("last is best", because HAMi's fit walks the sorted list backwards). Equal cards
keep the order they had: the order of the node's card list, and within a pod the order in which the
container before left them. So of equal cards the last one is taken, as HAMi does on its nodes of up
to twelve cards (its sort is stable only there).
"""

from __future__ import annotations

import numpy as np

from hamicommon.domain.requests import DeviceRequest, Policy, ScoreWeights
from hamicommon.placement.cluster.cards import Bools, Cards, Floats, Int
from hamicommon.placement.node_policies import FRAGMENTATION

_SCORE_WEIGHT = np.float32(10)


def card_scores(
    cards: Cards, weights: ScoreWeights, request: DeviceRequest, counted: Bools
) -> Floats:
    """Return (nodes, places): usage of each card; higher is fuller.

    HAMi adds the request itself only on cards whose type is just the vendor's name (`counted`, by
    model); a real NVIDIA card has a product name, so there only the present usage counts.
    """
    slots = cards.slots - cards.free_slots
    core = cards.core - cards.free_core
    memory = cards.memory - cards.free_memory
    if counted.any():
        here = counted[cards.model]
        percent = request.memory_percent
        asked = cards.memory * percent // 100 if percent else request.memory_mib
        slots = slots + here
        core = core + here * request.core_percent
        memory = memory + here * asked
    known = (cards.slots != 0) & (cards.core != 0) & (cards.memory != 0)
    total: Floats = np.zeros(cards.model.shape, np.float32)
    for weight, used, capacity in (
        (weights.slot, slots, cards.slots),
        (weights.core, core, cards.core),
        (weights.memory, memory, cards.memory),
    ):
        share = (weight * used).astype(np.float32)
        total += np.divide(share, capacity, out=np.zeros_like(total), where=known, dtype=np.float32)
    return _SCORE_WEIGHT * total


def order(cards: Cards, scores: Floats, policy: Policy, numa_bind: bool, prior: Int | None) -> Int:
    """Return (nodes, places): places from the least to the most preferred.

    `prior` is the order that the container before left, or None for the order of the list.
    """
    keys = _keys(cards, scores, policy.gpu, numa_bind)
    if prior is None:
        return np.lexsort(tuple(reversed(keys)), axis=-1)
    moved = tuple(np.take_along_axis(key, prior, axis=1) for key in reversed(keys))
    return np.take_along_axis(prior, np.lexsort(moved, axis=-1), axis=1)


def _keys(
    cards: Cards, scores: Floats, policy: tuple[str, ...], numa_bind: bool
) -> list[Int | Floats]:
    """Return the sort keys of cards, the most important first."""
    if len(policy) != 1 or policy[0] == "numa":
        return _chain(cards, scores, policy, numa_bind)
    if policy[0] == "mutex":
        return [cards.free_slots - cards.slots, cards.numa]
    binpack = policy[0] in ("binpack", FRAGMENTATION)
    if numa_bind:
        return [-cards.numa, scores] if binpack else [cards.numa, -scores]
    return [scores if binpack else -scores, cards.numa]


def _chain(
    cards: Cards, scores: Floats, policy: tuple[str, ...], numa_bind: bool
) -> list[Int | Floats]:
    """Return the keys of a list of policies in the order written, with the card's index last."""
    known = [key for key in policy if key in ("binpack", "spread", "numa")] or ["spread"]
    if numa_bind and known[0] != "numa":
        known = ["numa", *(key for key in known if key != "numa")]
    by_name: dict[str, Int | Floats] = {
        "binpack": scores,
        "spread": -scores,
        "numa": cards.numa,
    }
    return [*(by_name[key] for key in known), cards.index]
