"""Costs of showback rows: whole cents that add up to the cost of the cards.

A line's cost is its share of the type's whole, rounded down; what is left over goes, cent by cent,
to the lines that lost the most by rounding, the largest first where that is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any

from hamicommon.ledger.showback.prices import PriceList

HOUR_S = 3600
CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """Card time of a namespace on one type of card, or what became of the type's other time."""

    type: str
    kind: str
    """`held`, or idle, stranded, cordoned, unhealthy, unknown."""
    namespace: str
    """Empty but for what was held."""
    card_s: int
    cost: Decimal | None
    """None: the type has no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Of a time; the lines add up to the cards' own hours and cost."""

    since: datetime
    until: datetime
    basis: str
    prices: PriceList | None
    lines: tuple[BillLine, ...]

    @property
    def card_s(self) -> int:
        """The cards' own time."""
        return sum(line.card_s for line in self.lines)

    @property
    def cost(self) -> Decimal | None:
        """Of all lines that have a price; None: of none."""
        costs = [line.cost for line in self.lines if line.cost is not None]
        return sum(costs, Decimal(0)) if costs else None


def make_bill(
    rows: Iterable[Mapping[str, Any]],
    *,
    since: datetime,
    until: datetime,
    basis: str,
    prices: PriceList | None = None,
) -> Bill:
    """From the rows of `showback`; rows of one name are one line."""
    seconds: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (str(row["type"]), str(row["kind"]), str(row["namespace"]))
        seconds[key] = seconds.get(key, 0) + int(row["card_s"])
    lines: list[BillLine] = []
    for card_type, of_type in groupby(sorted(seconds), key=lambda key: key[0]):
        keys = list(of_type)
        price = None if prices is None else prices.of(card_type)
        costs: list[Decimal | None] = [None] * len(keys)
        if price is not None:
            costs = list(costs_of([seconds[key] for key in keys], price))
        lines += [
            BillLine(type=key[0], kind=key[1], namespace=key[2], card_s=seconds[key], cost=cost)
            for key, cost in zip(keys, costs, strict=True)
        ]
    return Bill(since=since, until=until, basis=basis, prices=prices, lines=tuple(lines))


def costs_of(seconds: list[int], price: Decimal) -> list[Decimal]:
    """What each costs, in whole cents whose sum is the cost of all, to the nearest cent."""
    exact = [Fraction(each) * Fraction(price) * 100 / HOUR_S for each in seconds]
    whole = sum(exact, Fraction(0))
    cents = [int(each) for each in exact]
    left = round(whole) - sum(cents)
    order = sorted(range(len(cents)), key=lambda n: (cents[n] - exact[n], -seconds[n], n))
    for number in order[:left]:
        cents[number] += 1
    return [Decimal(each) * CENT for each in cents]
