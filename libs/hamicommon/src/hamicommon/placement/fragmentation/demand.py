"""What the usual pods need of cards: of one card, of several, and of some models alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import GpuDevice
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.fragmentation.cuts import CARD
from hamicommon.placement.predicates import type_codes
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import VendorRules

Float64 = npt.NDArray[np.float64]

PERMILLE = 1000


class CardNeed(NamedTuple):
    """What a shape needs of one card of a model."""

    core: int
    """Percent of the card, rounded up; at least 1, because a card without cores takes nobody."""
    memory: int
    """Permille of the card, rounded up."""
    memory_percent: int
    """The same in percent, rounded up; at least 1."""
    core_part: float
    memory_part: float
    """0..1 and not rounded."""

    @property
    def percents(self) -> tuple[int, int]:
        """Percent of the card's cores and of its memory; 1..100 each."""
        return self.core, self.memory_percent


class Lots(NamedTuple):
    """Shapes that want several cards of one node; all arrays are (lots,) but for `accepts`."""

    cards: Int
    cpu_milli: Int
    """At least 1."""
    parts: Float64
    """Of all arrivals."""
    rivals: Float64
    """Together with the lots that want as many cards of the same models."""
    milli: Float64
    """What one pod takes of cards."""
    accepts: Bools
    """(models, lots): whether it may use such a card."""


class Confined(NamedTuple):
    """Sets of models that some shapes can't do without, while others have the choice.

    A set is of use to all shapes that may use no model outside of it.
    """

    models: Bools
    """(sets, models): which belong to it."""
    milli: Float64
    """(sets,): what an arrival takes of such cards because it has to, mean over all arrivals; with
    the remainder that nobody can use then."""
    square: Float64
    """(sets,): the mean of its square."""


Needs = Sequence[Sequence[CardNeed | None]]
"""Of each shape of a mix, of each model."""


def needs_of(
    mix: Mix, models: Sequence[GpuDevice | None], rules: Callable[[str], VendorRules]
) -> Needs:
    """What every shape needs of a card of every model; None: it can't use such a card."""
    return [[_need(shape, model, rules) for model in models] for shape in mix.shapes]


def _need(
    shape: PodShape, model: GpuDevice | None, rules: Callable[[str], VendorRules]
) -> CardNeed | None:
    """None: the shape can't use such a card."""
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
    """Percent (`of` 100) or permille (1000) of the whole: in integers, because 55 of 100 are more
    than 55 percent as floating point has them."""
    return -(-amount * of // whole)


def mean_milli(mix: Mix, needs: Needs) -> float:
    """What one arrival takes of cards."""
    total = 0.0
    for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
        usable = [need for need in line if need is not None]
        if usable:
            size = sum(max(need.core_part, need.memory_part) for need in usable) / len(usable)
            total += part * shape.request.count * size * PERMILLE
    return total


def lots_of(mix: Mix, needs: Needs, models: int) -> Lots:
    """The shapes that want several cards."""
    chosen = [
        (shape, part, line)
        for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True)
        if shape.request.count > 1 and any(need is not None for need in line)
    ]
    cards = np.array([shape.request.count for shape, _, _ in chosen], np.int64)
    parts = np.array([part for _, part, _ in chosen])
    accepts = np.zeros((models, len(chosen)), np.bool_)
    milli = np.zeros(len(chosen))
    for number, (shape, _, line) in enumerate(chosen):
        accepts[:, number] = [need is not None for need in line]
        size = max(max(need.core_part, need.memory_part) for need in line if need is not None)
        milli[number] = shape.request.count * size * PERMILLE
    rivals = (cards[:, None] == cards) & (accepts.T.astype(np.int64) @ accepts > 0)
    return Lots(
        cards=cards,
        cpu_milli=np.array([max(shape.cpu_milli, 1) for shape, _, _ in chosen], np.int64),
        parts=parts,
        rivals=rivals @ parts,
        milli=milli,
        accepts=accepts,
    )


def confined_to(mix: Mix, needs: Needs, worth: Float64) -> Confined:
    """The sets of models; `worth`: as `Tables.worth`."""
    usable = [np.array([need is not None for need in line], np.bool_) for line in needs]
    masks = list({mask.tobytes(): mask for mask in usable if mask.any()}.values())
    contested = [
        mask
        for mask in masks
        if any((mask & other).any() and (other & ~mask).any() for other in masks)
    ]
    sets: Bools = np.array(contested, np.bool_).reshape(len(contested), len(worth))
    milli, square = np.zeros(len(sets)), np.zeros(len(sets))
    for shape, part, line, mask in zip(mix.shapes, mix.parts.tolist(), needs, usable, strict=True):
        inside = (sets | ~mask).all(axis=1)
        if mask.any() and inside.any():
            costs = [_cost(need, worth[at]) for at, need in enumerate(line) if need is not None]
            taken = shape.request.count * sum(costs) / len(costs)
            milli[inside] += part * taken
            square[inside] += part * taken**2
    return Confined(sets, milli, square)


def _cost(need: CardNeed, worth: Float64) -> float:
    """Milli that a slice really costs a card: also what is lost of the remainder that it leaves."""
    core, memory = need.percents
    return PERMILLE - float(worth[CARD - core, CARD - memory])
