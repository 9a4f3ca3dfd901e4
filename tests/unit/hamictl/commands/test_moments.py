"""Spellings of a moment, and their meaning."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.commands.options import moment, moment_of, since, span
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 11, 20, 14, 30, 15, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T14:05:00Z", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("2026-11-20T15:05+01:00", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("2026-11-20 14:05", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("14:05", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("today 9:05:01", datetime(2026, 11, 20, 9, 5, 1, tzinfo=UTC)),
        ("Yesterday 14:05", datetime(2026, 11, 19, 14, 5, tzinfo=UTC)),
        ("-15m", NOW - timedelta(minutes=15)),
        ("-1h30m", NOW - timedelta(hours=1, minutes=30)),
        (" now ", NOW),
    ],
)
def test_a_moment_is_understood(text: str, wanted: datetime) -> None:
    assert moment(text, now=NOW, utc=True) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "14:60", "-", "-15", "-15x", "15m", "tomorrow 14:05", "--1h"),
        *("2026-13-01", "2026-02-30T10:00Z", "0001-01-01T00:00+14:00", "9999999999d", "\x00"),
        *("-999999999w", "14:05 yesterday", "9999-12-31T23:59-14:00"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"wanted|length of time|time is counted"):
        moment(text, now=NOW, utc=True)


@given(st.text(max_size=30))
def test_any_text_is_a_moment_or_a_sentence(text: str) -> None:
    for utc in (True, False):
        with suppress(InvalidRequest):
            assert moment(text, now=NOW, utc=utc).tzinfo is UTC


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_rfc_3339_text_is_read_as_it_was_written(at: datetime) -> None:
    assert moment(at.isoformat(), now=NOW) == at


def test_since_takes_a_length_of_time_alone() -> None:
    assert since("2h", now=NOW) == NOW - timedelta(hours=2)
    assert since("14:05", now=NOW, utc=True) == moment("14:05", now=NOW, utc=True)


def test_parts_of_a_length_of_time_add_up() -> None:
    assert span("1w2d3h4m5s") == timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5)
    with pytest.raises(InvalidRequest, match="no length of time"):
        span("5")


@pytest.mark.parametrize("option", ["--at", "--until"])
def test_an_option_takes_a_length_of_time_as_so_long_ago(option: str) -> None:
    before = datetime.now(UTC)
    found = moment_of("2m", option)
    after = datetime.now(UTC)

    assert found is not None
    assert before <= found + timedelta(minutes=2) <= after
