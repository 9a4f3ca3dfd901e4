"""Price the free remainder of a card, by the dual prices of cutting cards into usual slices.

The linear program cuts the slices of the mix, in their shares, from as few cards as possible
(cutting stock; Gilmore and Gomory 1961). The dual price of a slice is the part of a card that it
really costs: 81 % cost a whole card if no arriving slice is small enough for the rest, 47 % half a
card. A remainder is worth the highest total price of slices that fit into it (an unbounded
knapsack); the excess is lost. Sizes are percent of a card.

If slices ask for cores and memory in different proportions, both are cut together: a card with few
cores left is not lost as long as slices of memory come.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

CARD = 100
_NEAR_ZERO = 1e-9
_MAX_PIVOTS = 400
"""Maximum pivots of the linear program; twenty to forty sizes take 30 to 120."""
_EXACT, _CLOSE = 1e-7, 1e-3
"""Minimum improvement for which a way of cutting is added; coarser with two amounts."""
_PROGRAMS = 6
"""Number of programs with two amounts whose prices are averaged."""


class Cuts:
    """Ways of cutting a card into slices of several kinds."""

    def __init__(self, cores: Int, memories: Int) -> None:
        """Prepare for kinds of slices with these amounts, 0..100, all different.

        Memory may be 0 for all of them: then only cores are cut.
        """
        self.alone: Int = CARD // np.maximum(cores, memories)
        """(kinds,): number of slices that a card gives of one kind."""
        self._cores, self._core_at = _sums(cores)
        self._memories, self._memory_at = _sums(memories)
        # Where a slice does not fit, -1 leads to the last row or column, worth -infinity.
        left_core = self._cores[:, None] - cores
        self._core_after = np.where(left_core < 0, -1, self._core_at[left_core])
        left_memory = self._memories - memories[:, None]
        self._memory_after = np.where(left_memory < 0, -1, self._memory_at[left_memory])

    def best(self, prices: Float64) -> tuple[float, Float64]:
        """Return the highest total price of slices that a card holds, and their number by kind."""
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
        """Return (101, 101): highest price of slices that fit, by free cores and memory."""
        worth, _ = self._cut(prices)
        found: Float64 = worth[self._core_at[:, None], self._memory_at]
        return found

    def _cut(self, prices: Float64) -> tuple[Float64, Int]:
        """Return the best worth and the next slice to cut, by used cores and memory."""
        shape = len(self._cores), len(self._memories)
        worth = np.full((shape[0] + 1, shape[1] + 1), -np.inf)
        worth[0, :-1] = 0.0
        taken = np.zeros(shape, np.int64)
        columns = np.arange(shape[1])
        for core in range(1, shape[0]):
            # A slice takes cores, so this only looks at rows before.
            values = prices[:, None] + worth[self._core_after[core][:, None], self._memory_after]
            kind = values.argmax(axis=0)
            taken[core] = kind
            row = np.maximum(values[kind, columns], worth[core - 1, :-1])
            worth[core, :-1] = np.maximum.accumulate(row)
        return worth, taken


def _sums(sizes: Int) -> tuple[Int, Int]:
    """Return the possible sums of slices within a card, and (101,) the largest within each amount.

    Between two of them nothing changes, so sizes in steps of ten need no finer table.
    """
    reached = np.zeros(CARD + 1, np.bool_)
    reached[0] = True
    for left in range(1, CARD + 1):
        before = left - sizes
        reached[left] = bool(reached[before[before >= 0]].any())
    return np.flatnonzero(reached), reached.cumsum() - 1


def lost_and_grantable(asked: Float64, core_weight: float) -> tuple[Float64, Float64]:
    """Return by free cores and memory (101, 101) the lost and the grantable thousandths.

    Both are by percent of cores and of memory that are left.

    Args:
        asked: (101, 101), how often slices of so much of both are asked for.
        core_weight: what cores count in an idle card, 0..1.
    """
    cores, memories = np.nonzero(asked)
    percent = np.arange(CARD + 1)
    if (cores >= memories).all() or (cores <= memories).all():
        # One amount decides for all, so only it is cut.
        shares = np.zeros(CARD + 1)
        np.add.at(shares, np.maximum(cores, memories), asked[cores, memories])
        sizes = np.flatnonzero(shares)
        least = np.minimum.outer(percent, percent)
        lost, idle = lost_by_one(sizes, shares[sizes])[least], 10.0 * least
    else:
        lost = lost_by_both(cores, memories, asked[cores, memories], core_weight)
        idle = _idle(core_weight)
    return lost, idle - lost


def lost_by_one(sizes: Int, shares: Float64) -> Float64:
    """Return (101,): thousandths lost when this percent of a card is free.

    Args:
        sizes: percent, 1..100, distinct.
        shares: how often each is asked for.
    """
    if not len(sizes):
        return np.zeros(CARD + 1)
    cuts = Cuts(sizes, np.zeros_like(sizes))
    worth = cuts.worth(_prices(cuts, shares, _EXACT))[:, 0]
    return _lost_milli(np.arange(0, 10 * CARD + 1, 10, dtype=np.float64), worth)


def lost_by_both(cores: Int, memories: Int, shares: Float64, core_weight: float) -> Float64:
    """Return (101, 101): thousandths lost, by free percent of cores and of memory.

    Args:
        cores: percent of each kind, 1..100.
        memories: the same; no kind twice.
        shares: how often each is asked for, not all 0.
        core_weight: what cores count in an idle card, 0..1.
    """
    cuts = Cuts(cores, memories)
    # Slices that complete each other share the price of a card in any way: the mean of several
    # programs, each with the kinds a little more or less common, gives none of them all of it.
    random = np.random.default_rng(0)
    prices = [
        _prices(cuts, shares * random.uniform(0.8, 1.25, len(shares)), _CLOSE)
        for _ in range(_PROGRAMS)
    ]
    return _lost_milli(_idle(core_weight), cuts.worth(np.mean(prices, axis=0)))


def _idle(core_weight: float) -> Float64:
    """Return (101, 101): idle thousandths of a card, by free percent of cores and memory."""
    percent = 10.0 * np.arange(CARD + 1)
    return core_weight * percent[:, None] + (1 - core_weight) * percent


def _lost_milli(idle: Float64, worth: Float64) -> Float64:
    # A whole card loses nothing by definition: prices are parts of one.
    lost: Float64 = idle - 1000.0 * worth / max(float(worth.flat[-1]), _NEAR_ZERO)
    return np.maximum(lost, 0.0)


def _prices(cuts: Cuts, shares: Float64, least: float) -> Float64:
    """Return (kinds,): part of a card that a slice of each kind costs, 0..1."""
    columns = np.diag(cuts.alone).astype(np.float64)
    """(kinds, columns): how many slices of each kind a way of cutting gives."""
    costs = np.ones(len(shares))
    amounts: Float64 = shares / cuts.alone
    for _ in range(_MAX_PIVOTS):
        prices = np.asarray(np.linalg.solve(columns.T, costs), np.float64)
        entering, cost = _entering(cuts, prices, least)
        if entering is None:
            break
        change = np.linalg.solve(columns, entering)
        positive = np.flatnonzero(change > _NEAR_ZERO)
        if not len(positive):
            break
        ratios = amounts[positive] / change[positive]
        step = float(ratios.min())
        # Of equal ratios the first column leaves: with the dearest entering this does not cycle
        # in practice, and the number of pivots is bounded anyway.
        leaving = int(positive[int(ratios.argmin())])
        amounts -= step * change
        amounts[leaving] = step
        np.maximum(amounts, 0.0, out=amounts)
        columns[:, leaving], costs[leaving] = entering, cost
    return np.clip(prices, 0.0, 1.0)


def _entering(cuts: Cuts, prices: Float64, least: float) -> tuple[Float64 | None, float]:
    """Return a column that improves the program, with its cost: a slice too many, or a cutting."""
    cheapest = int(prices.argmin())
    if prices[cheapest] < -_NEAR_ZERO:
        surplus = np.zeros(len(prices))
        surplus[cheapest] = -1.0
        return surplus, 0.0
    worth, column = cuts.best(np.maximum(prices, 0.0))
    return (None, 0.0) if worth <= 1.0 + least else (column, 1.0)
