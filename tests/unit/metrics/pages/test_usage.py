"""Series of a chart: what is unknown is a gap, and grants add up from their changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_metrics.pages.usage import chart, chart_times

UNTIL = datetime(2026, 11, 20, 14, 7, tzinfo=UTC)
TIMES = chart_times(UNTIL, 1, 1200)
GIB = 1024.0


def drawn(
    used: list[dict[str, Any]] | None = None,
    granted: list[tuple[int, float, float]] | None = None,
    last: tuple[float | None, float | None] = (None, None),
    first_record: datetime | None = TIMES[0],
) -> Any:
    changes = [
        {"place": place, "memory_mib": mib, "core_percent": percent}
        for place, mib, percent in granted or []
    ]
    return chart(TIMES, used or [], changes, (UNTIL, *last), first_record)


@pytest.mark.parametrize(
    ("hours", "step_s", "first", "count"),
    [
        (1, 1200, datetime(2026, 11, 20, 13, 0, tzinfo=UTC), 3),
        (6, 300, datetime(2026, 11, 20, 8, 5, tzinfo=UTC), 72),
        (720, 3600, datetime(2026, 10, 21, 14, 0, tzinfo=UTC), 720),
    ],
)
def test_a_window_has_the_buckets_that_are_over(
    hours: int, step_s: int, first: datetime, count: int
) -> None:
    times = chart_times(UNTIL, hours, step_s)

    assert (times[0], len(times)) == (first, count)
    over = times[-1] + timedelta(seconds=step_s)
    assert over <= UNTIL < over + timedelta(seconds=step_s)


def test_what_was_not_measured_is_a_gap_and_no_zero() -> None:
    rows = [
        {"at": TIMES[0], "memory_mib": 2 * GIB, "core_percent": None},
        {"at": TIMES[2], "memory_mib": 0.0, "core_percent": 12.345},
    ]

    series = drawn(rows)

    assert series["memory"]["used"] == [2.0, None, 0.0, None]
    assert series["cores"]["used"] == [None, None, 12.35, None]


def test_the_first_samples_are_the_last_point() -> None:
    series = drawn(last=(GIB / 2, 40.0))

    assert series["at"][-1] == UNTIL.timestamp()
    assert series["memory"]["used"] == [None, None, None, 0.5]
    assert series["cores"]["used"] == [None, None, None, 40.0]


def test_grants_hold_from_their_begin_to_their_end() -> None:
    series = drawn(granted=[(0, 4 * GIB, 30.0), (2, 2 * GIB, 10.0), (4, -4 * GIB, -30.0)])

    assert series["memory"]["granted"] == [4.0, 4.0, 6.0, 2.0]
    assert series["cores"]["granted"] == [30.0, 30.0, 40.0, 10.0]


@pytest.mark.parametrize(
    ("first_record", "granted"),
    [
        (TIMES[0], [0.0, 0.0, 0.0, 0.0]),
        (TIMES[1], [None, 0.0, 0.0, 0.0]),
        (None, [None, None, None, 0.0]),
    ],
)
def test_what_was_granted_before_the_first_record_is_unknown(
    first_record: datetime | None, granted: list[float | None]
) -> None:
    assert drawn(first_record=first_record)["memory"]["granted"] == granted
