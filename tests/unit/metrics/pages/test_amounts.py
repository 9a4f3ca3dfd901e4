"""Amounts with their unit, moments of addresses, terms of reasons; unknown is no zero."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hami_metrics.pages import amounts
from hami_metrics.pages.amounts import page_moment
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import reason_term

from tests.unit.metrics.pages.clusters import NOW


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (amounts.gib(None), "?"),
        (amounts.gib(0), "0 GiB"),
        (amounts.gib(512), "512 MiB"),
        (amounts.gib(39424), "38.5 GiB"),
        (amounts.gib(14336), "14 GiB"),
        (amounts.percent(None), "?"),
        (amounts.count(None), "?"),
        (amounts.count(12345), "12\u2009345"),
        (amounts.span(-3), "0 s"),
        (amounts.span(2460), "41 min"),
        (amounts.span(7800), "2 h 10 min"),
        (amounts.span(41 * 86400), "41 d"),
        (amounts.moment(None), "?"),
    ],
)
def test_amounts_have_their_unit_and_unknown_is_no_zero(shown: str, expected: str) -> None:
    assert shown == expected


def test_an_age_that_nobody_knows_is_unknown() -> None:
    assert amounts.age(None, NOW) == "?"
    assert amounts.share(None, 10) is None
    assert amounts.share(0.001, 10) == 1
    assert amounts.sum_known([1.0, None]) is None
    assert amounts.sum_known([1.0, 2.0]) == 3.0


@pytest.mark.parametrize(
    "text",
    ["x", "2026-13-01T00:00Z", "1999-01-01T00:00Z", "9" * 60, "2026-11-20T14:06Z", "0001-01"],
)
def test_a_moment_that_is_none_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidRequest, match="at: "):
        page_moment(text, NOW)


def test_a_moment_without_a_zone_is_utc_and_links_stay_in_it() -> None:
    moment = page_moment("2026-11-20T14:04", NOW)

    assert moment.at == datetime(2026, 11, 20, 14, 4, tzinfo=UTC)
    assert moment.query == "?at=2026-11-20T14:04:00Z"
    assert page_moment("2026-11-20T15:04+01:00", NOW).at == moment.at
    assert page_moment("", NOW).query == ""


def test_a_moment_is_written_on_pages_as_for_hamictl() -> None:
    for text in ("-2m", "2m", " 2m "):
        assert page_moment(text, NOW).at == NOW - timedelta(minutes=2)
    assert page_moment("yesterday 14:04", NOW).at == datetime(2026, 11, 19, 14, 4, tzinfo=UTC)


@pytest.mark.parametrize(
    ("code", "term"),
    [("CardInsufficientMemory", "memory"), ("a vendor's own", "a vendor's own")],
)
def test_a_reason_is_a_term_and_one_that_is_not_known_itself(code: str, term: str) -> None:
    assert reason_term(code) == term
