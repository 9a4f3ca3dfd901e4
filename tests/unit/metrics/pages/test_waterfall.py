"""Steps beside those of others, and spans of all services on one scale."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hami_metrics.pages.waterfall import (
    WIDTH,
    LastHour,
    decision_waterfall,
    grant_waterfall,
    rank,
    trace_waterfall,
)
from hamicommon.telemetry.waterfall import TraceSpan, waterfall
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.metrics.pages.clusters import NOW

MS = 1000


def a_span(name: str, begin_ms: int, end_ms: int, **changes: object) -> TraceSpan:
    given_: dict[str, object] = {
        "name": name,
        "service": "hami-scheduler",
        "trace_id": "t",
        "span_id": name,
        "parent_id": None,
        "start_us": begin_ms * MS,
        "end_us": end_ms * MS,
        **changes,
    }
    return TraceSpan(**given_)  # type: ignore[arg-type]


def test_a_rank_is_the_share_that_took_no_longer_and_of_too_few_there_is_none() -> None:
    assert rank(4, [1, 2, 3, 4, 5]) == 80
    assert rank(0.5, [1, 2, 3, 4, 5]) == 0
    assert rank(9, [1, 2, 3, 4, 5]) == 100
    assert rank(4, [1, 2, 3, 4]) is None


def test_phases_and_states_stand_beside_those_of_the_last_hour() -> None:
    hour = LastHour(
        phases_ms=[{"place": n, "total": 10 * n} for n in range(1, 11)],
        states_ms={"reserved": [10.0, 20.0, 30.0, 40.0, 50.0]},
    )
    events = [
        {"at": NOW + timedelta(milliseconds=at), "state": state}
        for at, state in ((0, "reserved"), (40, "bound"))
    ]

    decided = decision_waterfall({"place": 5.0, "parse": 1.0, "total": 95.0}, hour)
    granted = grant_waterfall(events, NOW + timedelta(milliseconds=60), hour)

    assert {step.name: step.rank for step in decided.steps} == {
        "filter": 90,
        "parse": None,
        "place": 50,
    }
    assert [(step.name, step.rank) for step in granted.steps] == [("reserved", 80), ("bound", None)]


def test_the_text_right_of_the_longest_bar_is_inside_the_picture() -> None:
    hour = LastHour(phases_ms=[{"place": 1, "total": 1}] * 9)

    drawn = decision_waterfall({"place": 912.3, "parse": 0.1, "total": 912.4}, hour)

    character = 7
    for step in drawn.steps:
        text = f"{'▬ ' if step.critical else ''}{step.text} · p{step.rank or 100}"
        assert step.x + step.width + 5 + character * len(text) <= WIDTH


def test_spans_of_all_services_are_on_one_scale_and_long_waits_are_not() -> None:
    spans = [
        a_span("admission", 0, 100, service="hami-webhook"),
        a_span("filter", 200, 300),
        a_span("place", 210, 290, parent_id="filter"),
        a_span("first-kernel", 900_000, 900_100, service="hami-node-agent", failed=True),
    ]

    drawn = trace_waterfall(waterfall(spans))

    assert [step.name.strip() for step in drawn.steps] == [
        *("admission", "filter", "place"),
        *("⋯", "first-kernel"),
    ]
    assert [step.gap for step in drawn.steps] == [False, False, False, True, False]
    assert [step.critical for step in drawn.steps] == [True, False, False, False, False]
    assert [step.failed for step in drawn.steps] == [False, False, False, False, True]
    assert drawn.steps[0].text == "100.0 ms · hami-webhook"
    assert "not to scale" in drawn.steps[3].text
    assert drawn.title == "300.0 ms of work in 15 min"
    bars = [step for step in drawn.steps if not step.gap]
    assert [step.width for step in bars if step.name.strip() != "place"] == pytest.approx(
        [bars[0].width] * 3
    )
    assert all(0 < step.x < step.x + step.width < WIDTH for step in bars)
    assert sorted(step.x for step in bars) == [step.x for step in bars]


def test_what_went_on_behind_an_answer_and_what_came_later_are_noted_below() -> None:
    spans = [
        a_span("filter", 0, 10),
        a_span("reserve", 5, 40, parent_id="filter"),
        a_span("bind", 60, 80, parent_id="filter"),
        a_span("release", 600_080, 600_090, parent_id="filter"),
    ]

    drawn = trace_waterfall(waterfall(spans))

    assert [step.name for step in drawn.steps] == ["filter", "\u2003reserve", "bind"]
    assert [step.critical for step in drawn.steps] == [False, True, False]
    behind = {step.name.strip(): step.behind / step.width for step in drawn.steps}
    assert behind == pytest.approx({"filter": 0, "reserve": 30 / 35, "bind": 0}, abs=0.01)
    assert drawn.title == "60.0 ms of work in 80.0 ms"
    assert drawn.notes == [
        "20.0 ms between steps, in which none of our services worked",
        "reserve: 30.0 ms of it, drawn pale, went on behind an answer that was given",
        "release: 10 min later, in 10.0 ms",
    ]
    assert not drawn.ranked


@given(st.dictionaries(st.text(max_size=8), st.floats(0, 1e6), max_size=9))
def test_bars_of_a_decision_stay_in_the_picture_and_one_is_critical(
    phases: dict[str, float],
) -> None:
    drawn = decision_waterfall(phases, LastHour())

    assert all(step.x >= 150 and step.x + step.width <= 1000 for step in drawn.steps)
    if drawn.steps and phases.keys() - {"total"}:
        assert sum(step.critical for step in drawn.steps) == 1


def test_a_long_run_is_folded_so_that_the_work_can_be_read() -> None:
    def change(seconds: float, state: str) -> dict[str, Any]:
        return {"at": NOW - timedelta(hours=5) + timedelta(seconds=seconds), "state": state}

    events = [change(0, "reserved"), change(0.04, "bound"), change(2, "allocated")]
    drawn = grant_waterfall(events, NOW, LastHour())

    assert [(step.name, step.gap) for step in drawn.steps] == [
        ("reserved", False),
        ("bound", False),
        ("allocated", True),
    ]
    assert "4 h 59 min" in drawn.steps[2].text
    assert drawn.steps[1].width > 500
    assert all(step.x + step.width <= 1000 for step in drawn.steps)
