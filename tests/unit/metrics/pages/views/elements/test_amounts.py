"""Amounts with their unit; what nobody knows is unknown, and no zero."""

from __future__ import annotations

import pytest
from hami_metrics.pages.views.elements import amounts

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
