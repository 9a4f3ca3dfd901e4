"""A bill by the reader's own prices: whole cents that add up, and unknown where there is none."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from hamicommon.ledger.showback import PriceList
from hamictl.commands.showback import bill_by, given_prices, sum_sentence

LINES: list[dict[str, Any]] = [
    {"type": "A100", "kind": "held", "namespace": "nlp", "card_s": 1800, "cost": None},
    {"type": "L40S", "kind": "idle", "namespace": None, "card_s": 3600, "cost": None},
]
BILL: dict[str, Any] = {
    "since": "2026-11-20T00:00:00Z",
    "until": "2026-11-20T02:00:00Z",
    "basis": "memory",
    "prices": None,
    "currency": None,
    "card_s": 5400,
    "lines": LINES,
}


def test_one_price_is_that_of_every_type_in_eur_where_the_service_has_no_currency() -> None:
    price = given_prices("2.50", "")
    assert isinstance(price, Decimal)

    made = bill_by(BILL, price)

    assert [line.cost for line in made.lines] == [Decimal("1.25"), Decimal("2.50")]
    assert made.prices is not None
    assert made.prices.currency == "EUR"
    in_dollars = bill_by({**BILL, "currency": "USD"}, price).prices
    assert in_dollars is not None
    assert in_dollars.currency == "USD"


def test_a_price_list_leaves_the_cost_of_other_types_unknown(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"version": "v", "currency": "EUR", "card_hour": {"A100": "2"}}))
    prices = given_prices("", str(file))
    assert isinstance(prices, PriceList)

    assert [line.cost for line in bill_by(BILL, prices).lines] == [Decimal("1.00"), None]


@pytest.mark.parametrize("text", ["x", "-1", "NaN", "Infinity", "1e99"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no price of a card-hour"):
        given_prices(text, "")


def test_a_file_that_is_no_price_list_is_refused_with_the_form(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="card_hour"):
        given_prices("", str(tmp_path / "none.json"))


def test_the_sentence_names_the_types_without_a_price_and_the_setting() -> None:
    assert sum_sentence({**BILL, "prices": "v1"}, None).startswith(
        "no price (HAMI_METRICS_PRICE_LIST of hami-metrics) for A100, L40S: or take --price"
    )
