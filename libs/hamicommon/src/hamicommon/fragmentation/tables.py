"""Look up which fraction of usual pods could use a card with given free amounts.

A shape enters a table once, at the least CPU, cores and memory that it needs; sums over the three
axes then answer for every state. So the time to value a node does not grow with the number of
shapes. Tables are recreated when the mix has changed or a new kind of card has come. That takes
some dozens of milliseconds, most of it for a linear program. If decisions must not wait for it
(`CurrentTables.defer`), they use the previous tables until others are made elsewhere: the mix
changes slowly, so this does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hamicommon.domain.devices import GpuDevice
from hamicommon.fragmentation.demand import (
    PERMILLE,
    UsualShape,
    confined_to,
    lots_of,
    mean_taken,
    usual_pods,
)
from hamicommon.fragmentation.remainders import CARD, Float64, lost_and_grantable
from hamicommon.placement.cluster.arrivals import Mix
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.vendor_policy import VendorRules


class Tables:
    """Tables for one mix of usual pods and the card models of a view."""

    def __init__(
        self,
        mix: Mix,
        models: Sequence[GpuDevice | None],
        rules: Callable[[str], VendorRules],
        *,
        prices: bool = True,
    ) -> None:
        """Compute the tables.

        Without `prices` no remainder counts as lost, and no program is solved.
        """
        self.mix = mix
        usual = usual_pods(mix, models, rules)
        core, memory = (
            mean_taken(usual, lambda need: need.core_part),
            mean_taken(usual, lambda need: need.memory_part),
        )
        self.core_weight = core / (core + memory) if core + memory else 0.5
        """Weight of free cores in an idle card; the rest is that of free memory."""
        self.cpu_levels: Int = np.unique(np.array([s.cpu_milli for s in mix.shapes], np.int64))
        every = [need for pod in usual for need in pod.usable]
        self.core_level = _levels((need.core for need in every), CARD)
        self.memory_level = _levels((need.memory for need in every), PERMILLE)
        """By free percent, and by free permille: how many of the needs that reaches."""
        self.levels = (
            len(self.cpu_levels) + 1,
            int(self.core_level[-1]) + 1,
            int(self.memory_level[-1]) + 1,
        )
        self.max_cards = max((s.request.count for s in mix.shapes), default=1)
        usable = np.zeros((len(models), *self.levels))
        several = np.zeros((len(models), self.levels[0], self.max_cards + 1))
        for pod in usual:
            cpu = int(np.searchsorted(self.cpu_levels, pod.shape.cpu_milli)) + 1
            for number, need in enumerate(pod.needs):
                if need is None:
                    continue
                if pod.shape.request.count == 1:
                    at = (number, cpu, self.core_level[need.core], self.memory_level[need.memory])
                    usable[at] += pod.part
                else:
                    several[number, cpu, pod.shape.request.count] += pod.part
        usable = usable.cumsum(axis=1).cumsum(axis=2).cumsum(axis=3)
        self.usable: Float64 = usable.ravel()
        """Part of the pods for which one card is enough, by model and the three levels, flat."""
        self.several: Float64 = several.cumsum(axis=1).cumsum(axis=2).ravel()
        """Part of the pods that want several cards, by model, CPU level and idle cards, flat."""
        self.lost: Float64 = np.zeros((len(models), CARD + 1, CARD + 1))
        """Milli lost of a remainder, by model and percent of cores and of memory."""
        left = 10.0 * np.minimum.outer(np.arange(CARD + 1), np.arange(CARD + 1))
        self.grantable: Float64 = np.repeat(left[None], len(models), axis=0)
        """Milli that can still be granted of it, by the same axes."""
        if prices:
            self._price(usual)
        self.lots = lots_of(usual, len(models))
        self.confined = confined_to(usual, self.grantable)
        self.mean_milli = PERMILLE * mean_taken(usual, lambda need: need.part)
        """Milli that one arrival takes of cards."""

    def _price(self, usual: Sequence[UsualShape]) -> None:
        """Price each model by its own slices; cards requested together count as whole ones."""
        known: dict[bytes, tuple[Float64, Float64]] = {}
        for number in range(len(self.lost)):
            # Part of the slices by percent of cores and of memory; together 1, or 0.
            asked = np.zeros((CARD + 1, CARD + 1))
            for pod in usual:
                need = pod.needs[number]
                if need is not None:
                    asked[need.percents] += pod.part * pod.shape.request.count
            asked /= asked.sum() or 1.0
            # Models that differ only in the pods that may use them usually have the same sizes.
            key = np.rint(asked * 200).astype(np.int16).tobytes()
            if key not in known:
                known[key] = lost_and_grantable(asked, self.core_weight)
            self.lost[number], self.grantable[number] = known[key]

    def arrivals(self, idle_milli: float) -> float:
        """Return the expected number of pods until a cluster with so much idle is full."""
        return idle_milli / self.mean_milli if self.mean_milli else 0.0

    def idle_milli(self, core: Int, memory: Int) -> Float64:
        """Return the thousandths of cards that count as idle, by free percent and permille."""
        idle: Float64 = (
            self.core_weight * (PERMILLE / CARD) * core + (1 - self.core_weight) * memory
        )
        return idle


def _levels(needs: Iterable[int], most: int) -> Int:
    """Return (most + 1,): how many of the distinct needs each amount satisfies."""
    thresholds = np.unique(np.array([0, *needs], np.int64))
    level: Int = np.searchsorted(thresholds, np.arange(most + 1), side="right")
    return level


_NONE = Mix((), ())
"""Mix of tables without prices, which no view has."""


class _Order(NamedTuple):
    """Mix and cards from which tables are computed."""

    mix: Mix
    models: tuple[GpuDevice | None, ...]
    rules: Callable[[str], VendorRules]


class CurrentTables:
    """Tables for a view's mix and card models, computed again when one of them changes."""

    def __init__(self) -> None:
        self._order: _Order | None = None
        self._tables: Tables | None = None
        self._deferred = False
        self._wanted: _Order | None = None
        """Tables that decisions would go by if they were there."""

    def defer(self) -> None:
        """Leave the computation of new tables to `pending`, so that no decision waits for it."""
        self._deferred = True

    def of(self, view: ClusterView) -> Tables:
        """Return the tables of the view; a new object whenever something has changed."""
        models, order = tuple(view.models), self._order
        # A mix is another one when it is another object.
        if self._tables and order and order.mix is view.usual.mix and order.models == models:
            return self._tables
        wanted = _Order(view.usual.mix, models, view.rules)
        if not self._deferred:
            self._tables, self._order = Tables(*wanted), wanted
            return self._tables
        if self._wanted is None or self._wanted[:2] != wanted[:2]:
            self._wanted = wanted
        if self._tables is None or order is None or order.models != models:
            # Kinds of cards that the tables of before do not know are looked up without prices.
            self._tables = Tables(*wanted, prices=False)
            self._order = wanted._replace(mix=_NONE)
        return self._tables

    def pending(self) -> Callable[[], Callable[[], None]] | None:
        """Return the function that computes due tables, if any are due.

        See `NodePolicy.pending`.
        """
        order = self._wanted
        if order is None:
            return None

        def make() -> Callable[[], None]:
            tables = Tables(*order)
            return lambda: self._put(order, tables)

        return make

    def _put(self, order: _Order, tables: Tables) -> None:
        # Tables are of no use where the kinds of cards are others by now.
        if self._order is not None and order.models == self._order.models:
            self._tables, self._order = tables, order
        if self._wanted is order:
            self._wanted = None
