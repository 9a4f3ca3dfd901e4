"""What a remainder of a card is worth: the dual prices of cutting cards into the usual slices.

The linear program: with as few cards as possible, cut the slices of the mix in their shares
(cutting stock; Gilmore and Gomory 1961). The dual price of a slice is the part of a card that it
really costs: 81 % cost a whole card where nothing small enough comes to fill the rest, 47 % half a
card. A remainder is worth what the dearest slices that fit into it cost; what it has beyond that is
lost. Sizes are percent of a card.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

CARD = 100

_MOST_PIVOTS = 400
"""Twenty to forty sizes take 30 to 120; what is reached by then is used."""
_NEAR_ZERO = 1e-9


def lost_by_remainder(sizes: Int, shares: Float64) -> Float64:
    """(101,): what is lost of a card of which so many percent are left, in milli of a card.

    Args: sizes: percent, 1..100, distinct; shares: how often each is asked for, not all 0.
    """
    lost: Float64 = np.arange(0, 10 * CARD + 1, 10, dtype=np.float64)
    asked = shares > 0
    if not asked.any():
        return np.zeros(CARD + 1)
    prices = _prices(sizes[asked], shares[asked])
    worth, _ = _best_cuts(sizes[asked], prices)
    # A whole card loses nothing by definition: prices are parts of one.
    lost -= 1000.0 * worth / max(float(worth[CARD]), _NEAR_ZERO)
    lost[lost < 0] = 0
    return lost


def _prices(sizes: Int, shares: Float64) -> Float64:
    """(sizes,): the part of a card that a slice of each size costs, 0..1."""
    kinds = len(sizes)
    cuts = np.diag(CARD // sizes).astype(np.float64)
    """(sizes, columns): how many slices of each size a way of cutting gives."""
    costs = np.ones(kinds)
    amounts: Float64 = shares / (CARD // sizes)
    for _ in range(_MOST_PIVOTS):
        prices = np.asarray(np.linalg.solve(cuts.T, costs), np.float64)
        entering, cost = _entering(sizes, prices)
        if entering is None:
            break
        change = np.linalg.solve(cuts, entering)
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
        cuts[:, leaving], costs[leaving] = entering, cost
    return np.clip(prices, 0.0, 1.0)


def _entering(sizes: Int, prices: Float64) -> tuple[Float64 | None, float]:
    """A column that improves the program, with its cost: a slice too many, or a way of cutting."""
    cheapest = int(prices.argmin())
    if prices[cheapest] < -_NEAR_ZERO:
        surplus = np.zeros(len(sizes))
        surplus[cheapest] = -1.0
        return surplus, 0.0
    worth, taken = _best_cuts(sizes, np.maximum(prices, 0.0))
    if worth[CARD] <= 1.0 + 1e-7:
        return None, 0.0
    column, left = np.zeros(len(sizes)), CARD
    while left > 0:
        if taken[left] < 0:
            left -= 1
            continue
        column[taken[left]] += 1.0
        left -= int(sizes[taken[left]])
    return column, 1.0


def _best_cuts(sizes: Int, prices: Float64) -> tuple[Float64, Int]:
    """(101,) each: the dearest slices that fit, and the one to cut first (-1: none)."""
    # What does not fit is cut out of a remainder of less than nothing, which is worth -infinity.
    worth = np.full(2 * CARD + 1, -np.inf)
    worth[CARD] = 0.0
    taken = np.full(CARD + 1, -1, np.int64)
    for left in range(1, CARD + 1):
        values = prices + worth[CARD + left - sizes]
        best = int(values.argmax())
        if values[best] > worth[CARD + left - 1] + _NEAR_ZERO:
            worth[CARD + left], taken[left] = values[best], best
        else:
            worth[CARD + left] = worth[CARD + left - 1]
    return worth[CARD:], taken
