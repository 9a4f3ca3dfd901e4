"""A bill as a file: CSV for people, JSON for programs, FOCUS for cost tools.

FOCUS is the FinOps Open Cost and Usage Specification 1.0: one row a charge, cost columns in the
billing currency, times with a zone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum

import orjson

from hamicommon.ledger.showback.bill import HOUR_S, Bill, BillLine

HOURS = Decimal("0.0001")
"""Card-hours are shown to a third of a second."""
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
    """What a bill is written as."""

    CSV = "csv"
    JSON = "json"
    FOCUS = "focus"


def as_csv(bill: Bill) -> str:
    """One line each, the sum last; an empty cost is unknown."""
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
    return _written(_COLUMNS, rows)


def as_focus(bill: Bill) -> str:
    """FOCUS as CSV. Card time without a price is no charge, so it is not in it."""
    return _written(_FOCUS, [_charge(bill, line) for line in bill.lines if line.cost is not None])


def as_json(bill: Bill) -> bytes:
    """Amounts of money are texts, so that they stay exact; null is unknown."""
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


def _written(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula is shown as the text that it is."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def _hours(card_s: int) -> Decimal:
    return (Decimal(card_s) / HOUR_S).quantize(HOURS)


def _text(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:.2f}"


def _zulu(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%FT%TZ}"
