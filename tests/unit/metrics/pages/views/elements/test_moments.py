"""The moment that a page shows, as its address has it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hami_metrics.pages.views.elements.moments import page_moment
from hamicommon.errors import InvalidRequest

from tests.unit.metrics.pages.clusters import NOW


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
