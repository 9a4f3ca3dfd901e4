"""Steps beside those of others, and spans of all services on one scale."""

from __future__ import annotations

import pytest
from hami_metrics.pages.waterfall import (
    WIDTH,
    LastHour,
    decision_steps,
    rank,
    trace_waterfall,
)
from hamicommon.telemetry.waterfall import TraceSpan, waterfall

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


def test_phases_stand_in_their_order_beside_those_of_the_last_hour() -> None:
    hour = LastHour(phases_ms=[{"place": n, "total": 10 * n} for n in range(1, 11)])

    steps = decision_steps({"place": 5.0, "other": 0.5, "parse": 1.0, "total": 95.0}, hour)

    assert [(step.name, step.ms, step.critical, step.rank) for step in steps] == [
        ("filter", 95.0, False, 90),
        ("parse", 1.0, False, None),
        ("place", 5.0, True, 50),
        ("other", 0.5, False, None),
    ]
    assert decision_steps({"total": 0.0}, hour) == []


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
