"""Requests of the usual pods: for one card, for several, and for certain models only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hamicommon.domain.devices import GpuDevice
from hamicommon.fragmentation.remainders import CARD, Float64
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.predicates import type_codes
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules

PERMILLE = 1000


class CardNeed(NamedTuple):
    """Part of one card of a model that a pod of some shape takes."""

    core: int
    """Percent of the card's cores, rounded up.

    At least 1, as a card without cores serves no pod.
    """
    memory: int
    """Permille of the card's memory, rounded up."""
    memory_percent: int
    """Percent of the card's memory, rounded up; at least 1."""
    core_part: float
    memory_part: float
    """Part of the card's memory, 0..1, not rounded."""

    @property
    def part(self) -> float:
        """Return the larger part of the card, 0..1, of cores and memory."""
        return max(self.core_part, self.memory_part)

    @property
    def percents(self) -> tuple[int, int]:
        """Return percent of cores and of memory, 1..100 each."""
        return self.core, self.memory_percent


class UsualShape(NamedTuple):
    """A shape of usual pods, with its need for cards of each model."""

    shape: PodShape
    part: float
    """Fraction of all arriving pods."""
    needs: Sequence[CardNeed | None]
    """Need by model; None: the pod can't use such a card."""

    @property
    def usable(self) -> list[CardNeed]:
        """Return the needs for models that the pod can use."""
        return [need for need in self.needs if need is not None]


class Lots(NamedTuple):
    """Shapes that need several cards of one node; arrays are (lots,) except `accepts`."""

    cards: Int
    cpu_milli: Int
    """CPU request in thousandths of a core, at least 1."""
    parts: Float64
    """Fraction of all arriving pods."""
    rivals: Float64
    """Fraction of arriving pods that want as many cards of the same models, this lot included."""
    milli: Float64
    """Thousandths of cards that one pod takes."""
    accepts: Bools
    """(models, lots): whether the pod may use such a card."""


class ConfinedModels(NamedTuple):
    """Sets of models that some shapes depend on, while others have a choice.

    A set is of use to all shapes that may use no model outside of it.
    """

    models: Bools
    """(sets, models): whether the model belongs to the set."""
    milli: Float64
    """(sets,): mean thousandths of such cards that an arriving pod takes, with useless rests."""
    square: Float64
    """(sets,): mean of the square of `milli`."""


def usual_pods(
    mix: Mix, models: Sequence[GpuDevice | None], rules: Callable[[str], VendorRules]
) -> list[UsualShape]:
    """Return the shapes of the mix with their needs on each model."""
    return [
        UsualShape(shape, part, [_need(shape, model, rules) for model in models])
        for shape, part in zip(mix.shapes, mix.parts.tolist(), strict=True)
    ]


def _need(
    shape: PodShape, model: GpuDevice | None, rules: Callable[[str], VendorRules]
) -> CardNeed | None:
    request = shape.request
    if model is None or type_codes([model], request.vendor, shape.selection)[0] != Rule.FITS:
        return None
    need = rules(request.vendor).need(request, shape.selection, model)
    whole = model.core_percent if need.of_core is None else need.of_core
    core = (need.core, whole) if whole else (0, 1)
    memory = (need.memory_mib, model.memory_mib) if model.memory_mib else (0, 1)
    if core[0] > core[1] or memory[0] > memory[1]:
        return None
    return CardNeed(
        core=max(rounded_up(*core, of=CARD), 1),
        memory=rounded_up(*memory, of=PERMILLE),
        memory_percent=max(rounded_up(*memory, of=CARD), 1),
        core_part=core[0] / core[1],
        memory_part=memory[0] / memory[1],
    )


def rounded_up(amount: int, whole: int, *, of: int) -> int:
    """Round up an amount to percent (`of` 100) or permille (1000) of the whole.

    In integers, because 55 of 100 are more than 55 percent as floating point has them.
    """
    return -(-amount * of // whole)


def mean_taken(usual: Sequence[UsualShape], amount: Callable[[CardNeed], float]) -> float:
    """Return the mean number of cards that an arriving pod takes, over the models it can use."""
    return sum(
        pod.part * pod.shape.request.count / len(pod.usable) * sum(map(amount, pod.usable))
        for pod in usual
        if pod.usable
    )


def lots_of(usual: Sequence[UsualShape], models: int) -> Lots:
    """Return the shapes that need several cards."""
    chosen = [pod for pod in usual if pod.shape.request.count > 1 and pod.usable]
    cards = np.array([pod.shape.request.count for pod in chosen], np.int64)
    parts = np.array([pod.part for pod in chosen])
    accepts = np.zeros((models, len(chosen)), np.bool_)
    for number, pod in enumerate(chosen):
        accepts[:, number] = [need is not None for need in pod.needs]
    rivals = (cards[:, None] == cards) & (accepts.T.astype(np.int64) @ accepts > 0)
    return Lots(
        cards=cards,
        cpu_milli=np.array([max(pod.shape.cpu_milli, 1) for pod in chosen], np.int64),
        parts=parts,
        rivals=rivals @ parts,
        milli=cards
        * np.array([max(need.part for need in pod.usable) for pod in chosen])
        * PERMILLE,
        accepts=accepts,
    )


def confined_to(usual: Sequence[UsualShape], grantable: Float64) -> ConfinedModels:
    """Return the sets of models that some shapes depend on; `grantable` as `Tables.grantable`."""
    usable = [np.array([need is not None for need in pod.needs], np.bool_) for pod in usual]
    masks = list({mask.tobytes(): mask for mask in usable if mask.any()}.values())
    contested = [
        mask
        for mask in masks
        if any((mask & other).any() and (other & ~mask).any() for other in masks)
    ]
    sets: Bools = np.array(contested, np.bool_).reshape(len(contested), len(grantable))
    milli, square = np.zeros(len(sets)), np.zeros(len(sets))
    for pod, mask in zip(usual, usable, strict=True):
        inside = (sets | ~mask).all(axis=1)
        if mask.any() and inside.any():
            costs = [_cost(need, grantable[at]) for at, need in enumerate(pod.needs) if need]
            taken = pod.shape.request.count * sum(costs) / len(costs)
            milli[inside] += pod.part * taken
            square[inside] += pod.part * taken**2
    return ConfinedModels(sets, milli, square)


def _cost(need: CardNeed, grantable: Float64) -> float:
    """Return the thousandths that a slice costs a card, with the unusable remainder."""
    core, memory = need.percents
    return PERMILLE - float(grantable[CARD - core, CARD - memory])
