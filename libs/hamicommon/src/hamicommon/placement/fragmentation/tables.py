"""The usual pods as look-ups: which part of them could use a card with so much left.

A shape enters a table once, at the least CPU, cores and memory that it needs; sums over the three
axes then answer for every state. So the time to value a node does not grow with the number of
shapes. Tables are made again when the mix has changed or a new kind of card has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.devices import GpuDevice
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.cards import Bools, Int
from hamicommon.placement.fragmentation.prices import CARD, lost_by_remainder
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
    core_part: float
    memory_part: float
    """The same, 0..1 and not rounded."""

    @property
    def size(self) -> int:
        """Percent of the card by the greater of both, rounded up; 1..100."""
        return min(max(-int(-max(self.core_part, self.memory_part) * CARD // 1), 1), CARD)


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


class Tables:
    """Look-ups for one mix and the models that a view has."""

    def __init__(
        self,
        mix: Mix,
        models: Sequence[GpuDevice | None],
        rules: Callable[[str], VendorRules],
        *,
        prices: bool = True,
    ) -> None:
        """`prices` False: no remainder counts as lost, and no linear program is solved."""
        self.mix = mix
        needs = [[_need(shape, model, rules) for model in models] for shape in mix.shapes]
        self.core_weight, self.memory_weight = _weights(mix, needs)
        """What a free core and free memory count in an idle card; together 1."""
        self.cpu_levels: Int = np.unique(np.array([s.cpu_milli for s in mix.shapes], np.int64))
        every = [need for line in needs for need in line if need is not None]
        self.core_level = _levels((need.core for need in every), CARD)
        self.memory_level = _levels((need.memory for need in every), PERMILLE)
        """By free percent, and by free permille: how many of the needs that reaches."""
        self.levels = (
            len(self.cpu_levels) + 1,
            int(self.core_level[-1]) + 1,
            int(self.memory_level[-1]) + 1,
        )
        self.most_cards = max((s.request.count for s in mix.shapes), default=1)
        usable = np.zeros((len(models), *self.levels))
        several = np.zeros((len(models), self.levels[0], self.most_cards + 1))
        for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
            cpu = int(np.searchsorted(self.cpu_levels, shape.cpu_milli)) + 1
            for number, need in enumerate(line):
                if need is None:
                    continue
                if shape.request.count == 1:
                    at = (number, cpu, self.core_level[need.core], self.memory_level[need.memory])
                    usable[at] += part
                else:
                    several[number, cpu, shape.request.count] += part
        usable = usable.cumsum(axis=1).cumsum(axis=2).cumsum(axis=3)
        self.usable: Float64 = usable.ravel()
        """Part of the pods that one card suffices, by model and the three levels, flat."""
        self.several: Float64 = several.cumsum(axis=1).cumsum(axis=2).ravel()
        """Part of the pods that want several cards, by model, CPU level and idle cards, flat."""
        self.lost: Float64 = np.zeros((len(models), CARD + 1))
        if prices:
            self.lost[:] = list(_lost(mix, needs, len(models)))
        """(models, 101): what is lost of a remainder of so many percent, in milli of a card."""
        self.lots = _lots(mix, needs, len(models))
        self.mean_milli = _mean_milli(mix, needs)
        """What one arrival takes of cards."""

    def idle_milli(self, core: Int, memory: Int) -> Float64:
        """What counts as idle of cards with so many percent and permille free."""
        idle: Float64 = self.core_weight * (PERMILLE / CARD) * core + self.memory_weight * memory
        return idle


def _need(
    shape: PodShape, model: GpuDevice | None, rules: Callable[[str], VendorRules]
) -> CardNeed | None:
    """None: the shape can't use such a card."""
    request = shape.request
    if model is None or type_codes([model], request.vendor, shape.selection)[0] != Rule.FITS:
        return None
    need = rules(request.vendor).need(request, shape.selection, model)
    whole = model.core_percent if need.of_core is None else need.of_core
    core = need.core / whole if whole else 0.0
    memory = need.memory_mib / model.memory_mib if model.memory_mib else 0.0
    if core > 1 or memory > 1:
        return None
    return CardNeed(max(_up(core * CARD), 1), _up(memory * PERMILLE), core, memory)


def _up(amount: float) -> int:
    """Rounded up, but for the error of a division."""
    return int(np.ceil(amount - 1e-9))


def _levels(needs: Iterable[int], most: int) -> Int:
    """(most + 1,): how many of the distinct needs are not above each amount."""
    thresholds = np.unique(np.array([0, *needs], np.int64))
    level: Int = np.searchsorted(thresholds, np.arange(most + 1), side="right")
    return level


def _weights(mix: Mix, needs: Sequence[Sequence[CardNeed | None]]) -> tuple[float, float]:
    """How much of what the pods take of cards is cores, and how much memory."""
    core = memory = 0.0
    for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
        usable = [need for need in line if need is not None]
        if usable:
            times = part * shape.request.count / len(usable)
            core += times * sum(need.core_part for need in usable)
            memory += times * sum(need.memory_part for need in usable)
    both = core + memory
    return (core / both, memory / both) if both else (0.5, 0.5)


def _mean_milli(mix: Mix, needs: Sequence[Sequence[CardNeed | None]]) -> float:
    total = 0.0
    for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
        usable = [need for need in line if need is not None]
        if usable:
            size = sum(max(need.core_part, need.memory_part) for need in usable) / len(usable)
            total += part * shape.request.count * size * PERMILLE
    return total


def _lost(mix: Mix, needs: Sequence[Sequence[CardNeed | None]], models: int) -> Iterable[Float64]:
    """By model, from its own slices; cards that are asked for together are whole ones."""
    known: dict[bytes, Float64] = {}
    for number in range(models):
        shares = np.zeros(CARD + 1)
        for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
            need = line[number]
            if need is not None:
                shares[need.size] += part * shape.request.count
        total = shares.sum()
        # Models that differ only in who may use them mostly have the same sizes.
        key = np.rint(shares / total * 200).tobytes() if total else b""
        if key not in known:
            sizes = np.flatnonzero(shares)
            known[key] = lost_by_remainder(sizes, shares[sizes])
        yield known[key]


def _lots(mix: Mix, needs: Sequence[Sequence[CardNeed | None]], models: int) -> Lots:
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
