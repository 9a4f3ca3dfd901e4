"""The time slider: its window, its steps, and a run through it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from hami_metrics.pages.history import ChangeStrip, history_page, window_around, window_begin

from tests.unit.metrics.pages.clusters import NOW, ago


def a_strip(**changes: Any) -> ChangeStrip:
    given_: dict[str, Any] = {
        "since": ago(minutes=120),
        "until": NOW,
        "step": timedelta(minutes=1),
        "changes": [0] * 60 + [5] + [0] * 59,
        "health": [0] * 120,
        "previous": ago(minutes=70),
        "following": ago(minutes=10),
        "first_record": ago(days=3),
        **changes,
    }
    return ChangeStrip(**given_)


def test_the_slider_steps_to_the_changes_and_never_into_the_future() -> None:
    page = history_page(a_strip(), "1h", ago(minutes=60), NOW)
    moments = {text: to for _, text, to in page.steps}

    assert moments["◀ change before"] == ago(minutes=70)
    assert moments["change after ▶"] == ago(minutes=10)
    assert page.marker == 500.0
    assert [(bar["x"], bar["changes"]) for bar in page.bars] == [(500.0, 5)]
    now = history_page(a_strip(following=None), "1h", NOW, NOW)
    assert all(to <= NOW for _, _, to in now.steps)
    assert history_page(a_strip(), "1h", ago(days=4), NOW).before_record


def test_a_run_goes_through_the_window_in_sixty_moments_and_ends_at_now() -> None:
    asked = history_page(a_strip(), "1h", ago(minutes=60), NOW)
    assert (asked.play_from, asked.frame) == (ago(minutes=60), None)

    goes_on = history_page(a_strip(), "1h", ago(minutes=60), NOW, playing=True)
    assert goes_on.frame == ago(minutes=59)
    over = history_page(a_strip(), "1h", ago(seconds=59), NOW, playing=True)
    assert (over.play_from, over.frame) == (a_strip().since, None)


def test_the_moment_stands_in_the_middle_of_its_window() -> None:
    assert window_around(ago(hours=5), NOW, "1h") == (ago(hours=5.5), ago(hours=4.5))
    assert window_around(NOW, NOW, "1h") == (ago(hours=1), NOW)


def test_a_window_begins_at_the_first_record_where_that_is_within_it() -> None:
    day = ago(days=1)

    def begin(first: datetime | None, at: datetime = NOW) -> datetime:
        return window_begin(day, NOW, at=at, first=first)

    assert begin(ago(minutes=20)) == ago(minutes=21)
    assert begin(ago(seconds=5)) == ago(minutes=1)
    assert begin(ago(days=3)) == day
    assert begin(None) == day
    assert begin(ago(minutes=20), at=ago(minutes=30)) == day
