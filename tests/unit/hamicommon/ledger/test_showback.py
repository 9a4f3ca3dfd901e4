"""A bill: its lines are the cards' time and cost, whatever the prices."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import (
    Bill,
    PriceList,
    as_csv,
    as_focus,
    as_json,
    costs_of,
    make_bill,
    read_prices,
)
from hypothesis import given
from hypothesis import strategies as st

SINCE, UNTIL = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)
PRICES = PriceList(version="v3", currency="EUR", card_hour={"NVIDIA A100": Decimal("2.50")})
ROWS = [
    {"type": "NVIDIA A100", "kind": "held", "namespace": "nlp", "card_s": 3601},
    {"type": "NVIDIA A100", "kind": "held", "namespace": "vision", "card_s": 1799},
    {"type": "NVIDIA A100", "kind": "idle", "namespace": "", "card_s": 1800},
    {"type": "NVIDIA L40S", "kind": "held", "namespace": "nlp", "card_s": 7200},
]


def bill(prices: PriceList | None = PRICES) -> Bill:
    return make_bill(ROWS, since=SINCE, until=UNTIL, basis="memory", prices=prices)


@given(
    st.lists(st.integers(0, 10**12), max_size=40),
    st.decimals(min_value=0, max_value=10**6, places=4),
)
def test_costs_are_whole_cents_that_add_up_to_the_cost_of_all(
    seconds: list[int], price: Decimal
) -> None:
    costs = costs_of(seconds, price)

    whole = Fraction(sum(seconds)) * Fraction(price) / 3600
    assert abs(sum((Fraction(cost) for cost in costs), Fraction(0)) - whole) <= Fraction(1, 200)
    for each, cost in zip(seconds, costs, strict=True):
        assert cost >= 0
        assert cost == cost.quantize(Decimal("0.01"))
        assert abs(Fraction(cost) - Fraction(each) * Fraction(price) / 3600) <= Fraction(1, 100)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["A", "B"]),
            st.sampled_from(["held", "idle", "unknown"]),
            st.sampled_from(["", "x", "other"]),
            st.integers(0, 10**9),
        ),
        max_size=30,
    )
)
def test_a_bill_has_every_second_of_its_rows_once(rows: list[tuple[str, str, str, int]]) -> None:
    names = ("type", "kind", "namespace", "card_s")
    made = make_bill(
        [dict(zip(names, row, strict=True)) for row in rows],
        since=SINCE,
        until=UNTIL,
        basis="cores",
    )

    assert made.card_s == sum(row[3] for row in rows)
    assert len({(line.type, line.kind, line.namespace) for line in made.lines}) == len(made.lines)
    assert made.cost is None


def test_a_type_without_a_price_costs_an_unknown_amount_and_not_nothing() -> None:
    made = bill()

    assert [line.cost for line in made.lines] == [
        Decimal("2.50"),
        Decimal("1.25"),
        Decimal("1.25"),
        None,
    ]
    assert made.cost == Decimal("5.00")


def test_csv_ends_with_the_sum_and_leaves_unknown_cells_empty() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(bill()))))

    assert [row["cost"] for row in rows] == ["2.50", "1.25", "1.25", "", "5.00"]
    assert rows[-1]["kind"] == "sum"
    assert int(rows[-1]["card_s"]) == sum(int(row["card_s"]) for row in rows[:-1])


def test_a_name_that_a_spreadsheet_would_run_stays_a_text() -> None:
    rows = [{"type": "=cmd()", "kind": "held", "namespace": "x", "card_s": 1}]
    made = make_bill(rows, since=SINCE, until=UNTIL, basis="memory")

    assert "\nx,held,'=cmd(),1," in as_csv(made)


def test_json_has_exact_amounts_as_texts_and_null_for_unknown() -> None:
    found = json.loads(as_json(bill()))

    assert (found["cost"], found["currency"], found["prices"]) == ("5.00", "EUR", "v3")
    assert [line["cost"] for line in found["lines"]] == ["2.50", "1.25", "1.25", None]
    assert json.loads(as_json(bill(None)))["cost"] is None


def test_focus_has_a_row_for_each_charge_and_every_column_it_needs() -> None:
    rows = list(csv.DictReader(io.StringIO(as_focus(bill()))))

    assert sum(Decimal(row["BilledCost"]) for row in rows) == Decimal("5.00")
    assert [row["SubAccountId"] for row in rows] == ["nlp", "vision", "idle"]
    assert {row["ChargePeriodStart"] for row in rows} == {"2026-10-01T00:00:00Z"}
    assert all(row[name] for row in rows for name in rows[0])
    assert as_focus(bill(None)).count("\n") == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "can't be read"),
        ('{"version": "v1", "currency": "euro"}', "currency: String should match"),
        ('{"version": "v1", "currency": "EUR", "cards": {}}', "cards: Extra inputs"),
        ('{"version": "v1", "currency": "EUR", "card_hour": {"A": "-1"}}', "A: -1 is not a price"),
        ('{"version": "v1", "currency": "EUR", "card_hour": {"A": "x"}}', r"card_hour\.A: "),
    ],
)
def test_a_price_list_that_is_none_is_refused_with_the_field(
    tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)

    with pytest.raises(InvalidRequest, match=sentence):
        read_prices(path)


def test_a_price_list_is_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100": "2.50"}}')

    assert read_prices(path) == PRICES
