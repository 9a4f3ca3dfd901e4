"""Make a bill from rows of the question `showback`: prices, costs that add up, file formats. Pure.

A line's cost is its share of the type's total, rounded down to cents; the remainder goes, cent by
cent, to the lines that lost the most by rounding, the largest first among equals. A bill is written
as CSV for people, JSON for programs, and FOCUS for cost tools: the FinOps Open Cost and Usage
Specification 1.0, one row a charge, cost columns in the billing currency, times with a zone.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hamicommon.errors import InvalidRequest


class PriceList(BaseModel):
    """Prices as an operator writes them in JSON; amounts are texts, so that they are exact.

    `{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100": "2.50"}}`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str = Field(min_length=1, max_length=64)
    currency: str = Field(pattern="^[A-Z]{3}$")
    """Currency code of ISO 4217."""
    card_hour: dict[str, Decimal] = Field(default_factory=dict)
    """Price of an hour by type of card; a type that is not listed has no price, which is not 0."""

    def of(self, card_type: str) -> Decimal | None:
        """Return the price of an hour of one whole card; None: unknown."""
        return self.card_hour.get(card_type)


def read_prices(path: Path) -> PriceList:
    """Read a price list. Raises: InvalidRequest with the file's error."""
    try:
        prices = PriceList.model_validate(orjson.loads(path.read_bytes()))
    except ValidationError as exc:
        where = ".".join(map(str, exc.errors()[0]["loc"]))
        raise InvalidRequest(f"price list {path}: {where}: {exc.errors()[0]['msg']}") from None
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"price list {path} can't be read: {exc}") from exc
    for name, price in prices.card_hour.items():
        if not price.is_finite() or price < 0:
            raise InvalidRequest(f"price list {path}: card_hour.{name}: {price} is not a price")
    return prices


HOUR_S = 3600
CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """Line of a bill: card time of a namespace on one type of card, or time without a holder."""

    type: str
    kind: str
    """State of the time: `held`, idle, stranded, cordoned, unhealthy or unknown."""
    namespace: str
    """Namespace that held the cards; empty for other states."""
    card_s: int
    cost: Decimal | None
    """Cost of the time; None: the type has no price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Bill for a period; its lines add up to all time of the cards, and its cost."""

    since: datetime
    until: datetime
    basis: str
    prices: PriceList | None
    lines: tuple[BillLine, ...]

    @property
    def card_s(self) -> int:
        """Return the whole time of the cards in seconds."""
        return sum(line.card_s for line in self.lines)

    @property
    def cost(self) -> Decimal | None:
        """Return the cost of all lines with a price; None: no line has one."""
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
    """Make a bill from the rows of `showback`; rows of one name are one line."""
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
    """Return the cost of each in whole cents, which add up to the rounded cost of all."""
    exact = [Fraction(each) * Fraction(price) * 100 / HOUR_S for each in seconds]
    whole = sum(exact, Fraction(0))
    cents = [int(each) for each in exact]
    left = round(whole) - sum(cents)
    order = sorted(range(len(cents)), key=lambda n: (cents[n] - exact[n], -seconds[n], n))
    for number in order[:left]:
        cents[number] += 1
    return [Decimal(each) * CENT for each in cents]


HOURS = Decimal("0.0001")
"""Precision of card-hours in a bill, a third of a second."""
_COLUMNS = ("namespace", "kind", "type", "card_s", "card_hours", "cost", "currency")
_FOCUS = (
    *("BilledCost", "BillingAccountId", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit"),
    *("EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingQuantity"),
    *("PricingUnit", "ProviderName", "PublisherName", "ResourceType", "ServiceCategory"),
    *("ServiceName", "SkuId", "SubAccountId", "SubAccountName"),
)

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


class BillFormat(StrEnum):
    """File formats of a bill."""

    CSV = "csv"
    JSON = "json"
    FOCUS = "focus"


def as_csv(bill: Bill) -> str:
    """Write the bill as CSV, the sum last; an empty cost is unknown."""
    currency = bill.prices.currency if bill.prices else ""
    rows: list[tuple[object, ...]] = [
        (
            *(line.namespace, line.kind, line.type, line.card_s, _hours(line.card_s)),
            *(line.cost if line.cost is not None else "", currency),
        )
        for line in bill.lines
    ]
    cost = bill.cost if bill.cost is not None else ""
    rows.append(("", "sum", "", bill.card_s, _hours(bill.card_s), cost, currency))
    return _format_csv(_COLUMNS, rows)


def as_focus(bill: Bill) -> str:
    """Write the bill as CSV in FOCUS format.

    Card time without a price is no charge and left out.
    """
    return _format_csv(
        _FOCUS, [_charge(bill, line) for line in bill.lines if line.cost is not None]
    )


def as_json(bill: Bill) -> bytes:
    """Write the bill as JSON.

    Amounts of money are texts, so that they are exact, null is unknown.
    """
    content = {
        "apiVersion": "hami.io/v1",
        "since": bill.since,
        "until": bill.until,
        "basis": bill.basis,
        "prices": bill.prices.version if bill.prices else None,
        "currency": bill.prices.currency if bill.prices else None,
        "card_s": bill.card_s,
        "cost": _text(bill.cost),
        "lines": [
            {
                "namespace": line.namespace or None,
                "kind": line.kind,
                "type": line.type,
                "card_s": line.card_s,
                "cost": _text(line.cost),
            }
            for line in bill.lines
        ],
    }
    return orjson.dumps(content, option=orjson.OPT_UTC_Z)


def _charge(bill: Bill, line: BillLine) -> tuple[object, ...]:
    prices = bill.prices
    if prices is None:
        raise ValueError("a charge has a price")
    owner = line.namespace or line.kind
    hours = _hours(line.card_s)
    begin, end = _zulu(bill.since), _zulu(bill.until)
    values: dict[str, object] = {
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ListCost"), line.cost),
        **dict.fromkeys(("BillingPeriodStart", "ChargePeriodStart"), begin),
        **dict.fromkeys(("BillingPeriodEnd", "ChargePeriodEnd"), end),
        **dict.fromkeys(("ConsumedQuantity", "PricingQuantity"), hours),
        **dict.fromkeys(("ConsumedUnit", "PricingUnit"), "Hours"),
        **dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), "HAMi"),
        **dict.fromkeys(("SubAccountId", "SubAccountName"), owner),
        "BillingAccountId": prices.version,
        "BillingCurrency": prices.currency,
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{line.kind}: {line.type} by {bill.basis}",
        "ChargeFrequency": "Usage-Based",
        "ListUnitPrice": prices.of(line.type),
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "GPU sharing",
        "SkuId": line.type,
    }
    return tuple(values[name] for name in _FOCUS)


def _format_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a cell's text so that a spreadsheet does not take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _hours(card_s: int) -> Decimal:
    return (Decimal(card_s) / HOUR_S).quantize(HOURS)


def _text(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:.2f}"


def _zulu(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%FT%TZ}"


QuestionRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceUse:
    """Use of a namespace's grants, as ratios; None is unknown."""

    used_ratio: float | None = None
    """Average part of the grants that was used: of memory, or of cores with that basis."""
    idle_ratio: float | None = None
    """Part of the slices' time in hours without any work on the cores."""


UNKNOWN_USE = NamespaceUse()


def use_by_namespace(
    use: Iterable[QuestionRow] | None,
    *,
    basis: str,
    name_of: Callable[[str], str] = str,
) -> dict[str, NamespaceUse]:
    """Sum up use by the name that `name_of` gives each namespace, such as `other` for several.

    `use` are the rows of `namespace-use`; None: not answered. Hours in which it is not known
    whether a core was at work are not counted as idle.
    """
    what = "core_ratio" if basis == "cores" else "memory_bytes"
    granted: defaultdict[str, float] = defaultdict(float)
    used: defaultdict[str, float] = defaultdict(float)
    slice_s: defaultdict[str, float] = defaultdict(float)
    idle_s: defaultdict[str, float] = defaultdict(float)
    measured: set[str] = set()
    unsummed: set[str] = set()
    for row in use or ():
        name = name_of(str(row["namespace"]))
        slice_s[name] += row["slice_s"]
        if row["used_core_ratio"] is not None:
            measured.add(name)
        # A service of an older version does not sum it up.
        if row["sample_count"] and row.get("idle_s") is None:
            unsummed.add(name)
        idle_s[name] += row.get("idle_s") or 0
        if row[what] and row[f"used_{what}"] is not None:
            granted[name] += float(row[what]) * row["slice_s"]
            used[name] += float(row[f"used_{what}"]) * row["slice_s"]
    return {
        name: NamespaceUse(
            used_ratio=used[name] / granted[name] if granted[name] else None,
            idle_ratio=min(1.0, idle_s[name] / held_s)
            if name in measured - unsummed and held_s
            else None,
        )
        for name, held_s in slice_s.items()
    }
