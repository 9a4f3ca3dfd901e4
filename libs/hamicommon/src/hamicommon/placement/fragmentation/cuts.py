"""Ways of cutting a card into slices: the dearest that fit into a remainder (unbounded knapsack).

`OneAmount` where one of cores and memory decides for every slice, `TwoAmounts` where slices ask for
both in different proportions. Sizes are percent of a card.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

CARD = 100
_NEAR_ZERO = 1e-9


class Cuts(Protocol):
    """Slices of several kinds, and how cards are cut into them."""

    alone: Int
    """(kinds,): how many of one kind a card gives."""

    def best(self, prices: Float64) -> tuple[float, Float64]:
        """What the dearest way of cutting a card is worth, and its slices by kind."""


class OneAmount:
    """Slices of one size each."""

    def __init__(self, sizes: Int) -> None:
        """`sizes`: 1..100, distinct."""
        self._sizes = sizes
        self.alone: Int = CARD // sizes

    def best(self, prices: Float64) -> tuple[float, Float64]:
        """See `Cuts`."""
        worth, taken = self._cut(prices)
        column, left = np.zeros(len(self._sizes)), CARD
        while left > 0:
            if taken[left] < 0:
                left -= 1
                continue
            column[taken[left]] += 1.0
            left -= int(self._sizes[taken[left]])
        return float(worth[CARD]), column

    def worth(self, prices: Float64) -> Float64:
        """(101,): the dearest slices that fit into what is left."""
        return self._cut(prices)[0]

    def _cut(self, prices: Float64) -> tuple[Float64, Int]:
        """(101,) each: the worth, and the slice to cut first (-1: none)."""
        # What does not fit is cut out of a remainder of less than nothing, worth -infinity.
        worth = np.full(2 * CARD + 1, -np.inf)
        worth[CARD] = 0.0
        taken = np.full(CARD + 1, -1, np.int64)
        for left in range(1, CARD + 1):
            values = prices + worth[CARD + left - self._sizes]
            best = int(values.argmax())
            if values[best] > worth[CARD + left - 1] + _NEAR_ZERO:
                worth[CARD + left], taken[left] = values[best], best
            else:
                worth[CARD + left] = worth[CARD + left - 1]
        return worth[CARD:], taken


class TwoAmounts:
    """Slices that take so much of the cores and so much of the memory."""

    def __init__(self, cores: Int, memories: Int) -> None:
        """Both (kinds,), 1..100; no two kinds have both."""
        self.alone: Int = CARD // np.maximum(cores, memories)
        self._cores, self._core_at = _sums(cores)
        self._memories, self._memory_at = _sums(memories)
        # Where a slice does not fit, -1 leads to the last row or column, worth -infinity.
        left_core = self._cores[:, None] - cores
        self._core_after = np.where(left_core < 0, -1, self._core_at[left_core])
        left_memory = self._memories - memories[:, None]
        self._memory_after = np.where(left_memory < 0, -1, self._memory_at[left_memory])

    def best(self, prices: Float64) -> tuple[float, Float64]:
        """See `Cuts`."""
        worth, taken = self._cut(prices)
        column, core, memory = np.zeros(len(prices)), len(self._cores) - 1, len(self._memories) - 1
        while worth[core, memory] > 0:
            if core and worth[core - 1, memory] == worth[core, memory]:
                core -= 1
            elif memory and worth[core, memory - 1] == worth[core, memory]:
                memory -= 1
            else:
                kind = int(taken[core, memory])
                column[kind] += 1.0
                core, memory = (
                    int(self._core_after[core, kind]),
                    int(self._memory_after[kind, memory]),
                )
        return float(worth[len(self._cores) - 1, len(self._memories) - 1]), column

    def worth(self, prices: Float64) -> Float64:
        """(101, 101): the dearest slices that fit into the cores and the memory left."""
        worth, _ = self._cut(prices)
        found: Float64 = worth[self._core_at[:, None], self._memory_at]
        return found

    def _cut(self, prices: Float64) -> tuple[Float64, Int]:
        """By sums of cores and of memory that slices can have: worth, and a slice to cut."""
        shape = len(self._cores), len(self._memories)
        worth = np.full((shape[0] + 1, shape[1] + 1), -np.inf)
        worth[0, :-1] = 0.0
        taken = np.zeros(shape, np.int64)
        columns = np.arange(shape[1])
        for core in range(1, shape[0]):
            # A slice takes cores, so this looks at rows before alone.
            values = prices[:, None] + worth[self._core_after[core][:, None], self._memory_after]
            kind = values.argmax(axis=0)
            taken[core] = kind
            row = np.maximum(values[kind, columns], worth[core - 1, :-1])
            worth[core, :-1] = np.maximum.accumulate(row)
        return worth, taken


def _sums(sizes: Int) -> tuple[Int, Int]:
    """All sums up to a card that slices can have, from 0; and (101,) where the largest within is.

    Between two of them nothing changes, so sizes in steps of ten need no finer table.
    """
    reached = np.zeros(CARD + 1, np.bool_)
    reached[0] = True
    for left in range(1, CARD + 1):
        before = left - sizes
        reached[left] = bool(reached[before[before >= 0]].any())
    return np.flatnonzero(reached), reached.cumsum() - 1
