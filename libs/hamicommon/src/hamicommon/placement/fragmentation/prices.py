"""What a remainder of a card is worth: the dual prices of cutting cards into the usual slices.

The linear program: with as few cards as possible, cut the slices of the mix in their shares
(cutting stock; Gilmore and Gomory 1961). The dual price of a slice is the part of a card that it
really costs: 81 % cost a whole card where nothing small enough comes to fill the rest, 47 % half a
card. A remainder is worth what the dearest slices that fit into it cost; what it has beyond that is
lost. Sizes are percent of a card.

Where slices ask for cores and memory in different proportions, both are cut at once: a card with
few cores left is not lost as long as slices of memory come.
"""

from __future__ import annotations

import numpy as np

from hamicommon.placement.fragmentation.cuts import (
    CARD,
    Cuts,
    Float64,
    Int,
    OneAmount,
    TwoAmounts,
)

_MOST_PIVOTS = 400
"""Twenty to forty sizes take 30 to 120; what is reached by then is used."""
_NEAR_ZERO = 1e-9
_EXACT, _CLOSE = 1e-7, 1e-3
"""A way of cutting enters when it is worth more than a card by this; two amounts take long."""
_PROGRAMS = 6
"""Of two amounts, whose prices are averaged."""


def lost_by_remainder(sizes: Int, shares: Float64) -> Float64:
    """(101,): what is lost of a card of which so many percent are left, in milli of a card.

    Args: sizes: percent, 1..100, distinct; shares: how often each is asked for, not all 0.
    """
    lost: Float64 = np.arange(0, 10 * CARD + 1, 10, dtype=np.float64)
    asked = shares > 0
    if not asked.any():
        return np.zeros(CARD + 1)
    cuts = OneAmount(sizes[asked])
    worth = cuts.worth(_prices(cuts, shares[asked], _EXACT))
    # A whole card loses nothing by definition: prices are parts of one.
    lost -= 1000.0 * worth / max(float(worth[CARD]), _NEAR_ZERO)
    lost[lost < 0] = 0
    return lost


def lost_by_both(cores: Int, memories: Int, shares: Float64, core_weight: float) -> Float64:
    """(101, 101): the same by percent of cores and of memory that are left.

    Args: cores, memories: percent of each kind, 1..100, no kind twice; shares: not all 0;
    core_weight: what cores count in an idle card, 0..1.
    """
    percent = 10.0 * np.arange(CARD + 1)
    lost: Float64 = core_weight * percent[:, None] + (1 - core_weight) * percent
    cuts = TwoAmounts(cores, memories)
    # Slices that complete each other share the price of a card in any way: the mean of several
    # programs, each with the kinds a little more or less common, gives none of them all of it.
    random = np.random.default_rng(0)
    prices = [
        _prices(cuts, shares * random.uniform(0.8, 1.25, len(shares)), _CLOSE)
        for _ in range(_PROGRAMS)
    ]
    worth = cuts.worth(np.mean(prices, axis=0))
    lost -= 1000.0 * worth / max(float(worth[CARD, CARD]), _NEAR_ZERO)
    lost[lost < 0] = 0
    return lost


def _prices(cuts: Cuts, shares: Float64, least: float) -> Float64:
    """(kinds,): the part of a card that a slice of each kind costs, 0..1."""
    columns = np.diag(cuts.alone).astype(np.float64)
    """(kinds, columns): how many slices of each kind a way of cutting gives."""
    costs = np.ones(len(shares))
    amounts: Float64 = shares / cuts.alone
    for _ in range(_MOST_PIVOTS):
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
    """A column that improves the program, with its cost: a slice too many, or a way of cutting."""
    cheapest = int(prices.argmin())
    if prices[cheapest] < -_NEAR_ZERO:
        surplus = np.zeros(len(prices))
        surplus[cheapest] = -1.0
        return surplus, 0.0
    worth, column = cuts.best(np.maximum(prices, 0.0))
    return (None, 0.0) if worth <= 1.0 + least else (column, 1.0)
