"""The usual pods as look-ups: which part of them could use a card with so much left.

A shape enters a table once, at the least CPU, cores and memory that it needs; sums over the three
axes then answer for every state. So the time to value a node does not grow with the number of
shapes. Tables are made again when the mix has changed or a new kind of card has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hamicommon.domain.devices import GpuDevice
from hamicommon.placement.cluster.arrivals import Mix
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.fragmentation.cuts import CARD
from hamicommon.placement.fragmentation.demand import (
    PERMILLE,
    Float64,
    Needs,
    confined_to,
    lots_of,
    mean_milli,
    needs_of,
)
from hamicommon.placement.fragmentation.prices import lost_by_both, lost_by_remainder
from hamicommon.placement.vendor_policy import VendorRules


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
        needs = needs_of(mix, models, rules)
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
        self.lost: Float64 = np.zeros((len(models), CARD + 1, CARD + 1))
        """What is lost of a remainder, by model and percent of cores and of memory; in milli."""
        left = 10.0 * np.minimum.outer(np.arange(CARD + 1), np.arange(CARD + 1))
        self.worth: Float64 = np.repeat(left[None], len(models), axis=0)
        """The same axes: what can still be granted of it, in milli."""
        if prices:
            self._price(mix, needs)
        self.lots = lots_of(mix, needs, len(models))
        self.confined = confined_to(mix, needs, self.worth)
        self.mean_milli = mean_milli(mix, needs)
        """What one arrival takes of cards."""

    def _price(self, mix: Mix, needs: Needs) -> None:
        """Each model by its own slices; cards that are asked for together are whole ones."""
        known: dict[bytes, tuple[Float64, Float64]] = {}
        for number in range(len(self.lost)):
            asked = _asked(mix, needs, number)
            # Models that differ only in who may use them mostly have the same sizes.
            key = np.rint(asked * 200).astype(np.int16).tobytes()
            if key not in known:
                known[key] = _lost_and_worth(asked, self.core_weight)
            self.lost[number], self.worth[number] = known[key]

    def idle_milli(self, core: Int, memory: Int) -> Float64:
        """What counts as idle of cards with so many percent and permille free."""
        idle: Float64 = self.core_weight * (PERMILLE / CARD) * core + self.memory_weight * memory
        return idle


def _levels(needs: Iterable[int], most: int) -> Int:
    """(most + 1,): how many of the distinct needs are not above each amount."""
    thresholds = np.unique(np.array([0, *needs], np.int64))
    level: Int = np.searchsorted(thresholds, np.arange(most + 1), side="right")
    return level


def _weights(mix: Mix, needs: Needs) -> tuple[float, float]:
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


def _asked(mix: Mix, needs: Needs, model: int) -> Float64:
    """(101, 101): part of the slices by percent of cores and of memory; together 1, or 0."""
    asked = np.zeros((CARD + 1, CARD + 1))
    for shape, part, line in zip(mix.shapes, mix.parts.tolist(), needs, strict=True):
        need = line[model]
        if need is not None:
            asked[need.percents] += part * shape.request.count
    asked /= asked.sum() or 1.0
    return asked


def _lost_and_worth(asked: Float64, core_weight: float) -> tuple[Float64, Float64]:
    """(101, 101) each; `asked` as `_asked`."""
    cores, memories = np.nonzero(asked)
    percent = np.arange(CARD + 1)
    left: Float64 = 10.0 * np.minimum.outer(percent, percent)
    if (cores >= memories).all() or (cores <= memories).all():
        # One amount decides for all, so it alone is cut.
        shares = np.zeros(CARD + 1)
        np.add.at(shares, np.maximum(cores, memories), asked[cores, memories])
        sizes = np.flatnonzero(shares)
        lost = lost_by_remainder(sizes, shares[sizes])[np.minimum.outer(percent, percent)]
        return lost, left - lost
    lost = lost_by_both(cores, memories, asked[cores, memories], core_weight)
    idle = 10.0 * (core_weight * percent[:, None] + (1 - core_weight) * percent)
    return lost, idle - lost
