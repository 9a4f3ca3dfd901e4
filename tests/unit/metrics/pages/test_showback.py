"""The bill on its page: names, costs and the sum."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.showback import month_of, showback_page
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import PriceList, as_csv, as_focus

NOW = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)
EVERYBODY = PageViewer(namespaces=None)


def a_bill(
    rows: list[tuple[str, str, int]],
    card_s: int,
    viewer: PageViewer = EVERYBODY,
    *,
    prices: PriceList | None = None,
    **use: Any,
) -> Any:
    answered = [
        {"type": "A100", "kind": kind, "namespace": name, "card_s": s} for kind, name, s in rows
    ]
    month, since, until = month_of("2026-10", NOW)
    return showback_page(
        answered,
        [{"type": "", "card_s": card_s, "agrees": True}],
        viewer,
        month=month,
        basis="memory",
        since=since,
        until=until,
        now=NOW,
        prices=prices,
        **use,
    )


def test_a_bill_adds_up_whatever_the_viewer_may_read() -> None:
    rows = [("held", "nlp", 50), ("held", "ads", 30), ("idle", "", 15), ("unknown", "", 5)]

    assert a_bill(rows, 100).exact
    assert not a_bill(rows, 101).exact
    hidden = a_bill(rows, 100, PageViewer(namespaces=frozenset({"nlp"})))
    assert [(line.name, line.card_s) for line in hidden.held] == [("nlp", 50), ("other", 30)]
    assert hidden.exact


PRICES = PriceList(version="v3", currency="EUR", card_hour={"A100": Decimal("3.60")})


def test_a_namespace_is_no_formula_in_a_spreadsheet() -> None:
    lines = as_csv(a_bill([("held", "=cmd()", 3600)], 3600).bill).splitlines()

    assert lines[1] == "'=cmd(),held,A100,3600,1.0000,,"
    assert lines[-1] == ",sum,,3600,1.0000,,"


def test_a_bill_has_the_cost_of_each_line_and_a_type_without_a_price_is_unknown() -> None:
    rows = [("held", "nlp", 3000), ("idle", "", 600), ("held", "ads", 1000)]
    viewer = PageViewer(namespaces=frozenset({"nlp"}))

    bill = a_bill(rows, 4600, viewer, prices=PRICES)
    assert [(line.name, str(line.cost)) for line in bill.held] == [
        ("nlp", "3.00"),
        ("other", "1.00"),
    ]
    assert {line.name: str(line.cost) for line in bill.rest}["idle"] == "0.60"
    assert bill.unpriced == []
    assert "ads" not in as_focus(bill.bill)

    other = a_bill(rows, 4600, prices=PRICES.model_copy(update={"card_hour": {}}))
    assert {line.cost for line in other.held} == {None}
    assert other.unpriced == ["A100"]


def test_what_was_used_of_the_held_time_stands_beside_it() -> None:
    rows = [("held", "nlp", 7200), ("held", "ads", 3600), ("held", "new", 60), ("idle", "", 15)]
    use = [a_use("nlp", 50) | {"idle_s": 900}, a_use("ads", 25)]

    shown = {one.name: one for one in a_bill(rows, 10875, use=use).held}

    assert (shown["nlp"].used_card_s, shown["nlp"].idle_percent) == (3600, 25)
    assert (shown["ads"].used_card_s, shown["ads"].idle_percent) == (900, 0)
    assert (shown["new"].used_card_s, shown["new"].idle_percent) == (None, None)


def test_of_a_ledger_that_was_too_slow_use_is_unknown_and_the_bill_is_there() -> None:
    page = a_bill([("held", "nlp", 7200), ("idle", "", 15)], 7215)

    assert page.exact
    assert [(one.used_card_s, one.idle_percent) for one in (*page.held, *page.rest[:1])] == [
        (None, None),
        (None, None),
    ]


def a_use(namespace: str, used_percent: int) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "slice_s": 3600,
        "memory_bytes": 100 * 2**20,
        "used_memory_bytes": used_percent * 2**20,
        "core_ratio": 0.0,
        "used_core_ratio": 0.4,
        "sample_count": 4,
        "idle_s": 0,
    }


@pytest.mark.parametrize("text", ["2026-13", "2026", "x", "2027-01", "2026-1", "2026-11-01"])
def test_a_month_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="month"):
        month_of(text, NOW)


def test_a_month_ends_with_its_last_second_or_now() -> None:
    assert month_of("2025-12", NOW)[1:] == (
        datetime(2025, 12, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert month_of("", NOW) == ("2026-11", datetime(2026, 11, 1, tzinfo=UTC), NOW)
