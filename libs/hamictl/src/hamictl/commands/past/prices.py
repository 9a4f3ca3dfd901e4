"""Prices that the reader of a bill brings along: one for all types, or a price list's file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import typer
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import Bill, PriceList, make_bill, read_prices

DEFAULT_CURRENCY = "EUR"
FORM = '{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100-SXM4-80GB": "2.50"}}'
"""Of a price list."""
_MOST_PRICE = Decimal(10**9)


def given_prices(price: str, price_list: str) -> PriceList | Decimal | None:
    """From the options; None: neither was given. Raises: typer.BadParameter."""
    if price and price_list:
        raise typer.BadParameter("one of --price and --price-list", param_hint="--price")
    if price_list:
        try:
            return read_prices(Path(price_list))
        except InvalidRequest as exc:
            raise typer.BadParameter(
                f"{exc}; its form: {FORM}", param_hint="--price-list"
            ) from None
    if not price:
        return None
    try:
        amount = Decimal(price)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= _MOST_PRICE:
        raise typer.BadParameter(
            f"{price!r} is no price of a card-hour, as in 2.50", param_hint="--price"
        )
    return amount


def bill_by(bill: Mapping[str, Any], prices: PriceList | Decimal) -> Bill:
    """The service's bill with costs by these prices.

    One price is in the currency of the service's own price list, without one in EUR.
    """
    rows = [{**line, "namespace": line["namespace"] or ""} for line in bill["lines"]]
    if isinstance(prices, Decimal):
        prices = PriceList(
            version="--price",
            currency=str(bill.get("currency") or DEFAULT_CURRENCY),
            card_hour={str(row["type"]): prices for row in rows},
        )
    return make_bill(
        rows,
        since=datetime.fromisoformat(str(bill["since"])),
        until=datetime.fromisoformat(str(bill["until"])),
        basis=str(bill["basis"]),
        prices=prices,
    )
