"""The page of a pod: its state, its slices, and the decisions, in order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_metrics.pages.history import ChangeStrip, history_page, window_around, window_begin
from hami_metrics.pages.pod import pod_page
from hami_metrics.pages.pod_record import PodRecord
from hami_metrics.pages.usage import chart, chart_times
from hami_metrics.pages.waterfall import (
    WIDTH,
    LastHour,
    decision_steps,
    rank,
    trace_waterfall,
)
from hamicommon.domain.granted_cards import ConditionKind, GrantedCardCondition
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.telemetry.waterfall import TraceSpan, waterfall

from tests.unit.metrics.pages.clusters import NOW, ago


def a_decision(**changes: Any) -> dict[str, Any]:
    return {
        "at": ago(minutes=41),
        "last_at": ago(seconds=3),
        "outcome": "refused",
        "node": None,
        "candidates": 3,
        "summary": "no card has 40 GiB free",
        "message": "no node fits",
        "reason_counts": {"CardTypeMismatch": 1, "CardInsufficientMemory": 2},
        "repeat_count": 12,
        "phase_ms": {},
        "trace_id": "",
        "view_version": 7,
        "request": {},
        "wait_ended_at": None,
        "wait_end": None,
        "group_key": None,
        **changes,
    }


def over(end: str, at: datetime) -> dict[str, Any]:
    return a_decision(wait_end=end, wait_ended_at=at)


def an_attempt(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a",
        "attempt": 1,
        "node": "n1",
        "state": "allocated",
        "reason": "",
        "origin": "scheduled",
        "reserved_at": ago(hours=1),
        "ended_at": None,
        "created_by": None,
        "owner": None,
        "slices": [
            {
                "container": "main",
                "role": "app",
                "device_uuid": "GPU-1",
                "memory_mib": 8192,
                "core_percent": 30,
            }
        ],
        **changes,
    }


def a_pod(**changes: Any) -> PodRecord:
    given_: dict[str, Any] = {
        "uid": "u",
        "namespace": "nlp",
        "name": "train-1",
        "attempts": (),
        "events": (),
        "decisions": (),
        "limits": (),
        "limits_checked_at": None,
        "quotas": (),
        "use": (),
        "cards": (),
        "namesakes": (),
        **changes,
    }
    return PodRecord(**given_)


def test_a_waiting_pod_shows_the_stored_reason_and_since_when() -> None:
    earlier = a_decision(at=ago(minutes=50), last_at=ago(minutes=42))
    placed = a_decision(at=ago(hours=9), last_at=ago(hours=9), outcome="placed")
    page = pod_page(a_pod(decisions=[a_decision(), earlier, placed]), NOW)

    assert (page.status, page.glyph) == ("waiting", "▲")
    assert page.since == ago(minutes=50)
    assert page.sentence == "no card has 40 GiB free"
    assert page.refusals == [("CardInsufficientMemory", 2), ("CardTypeMismatch", 1)]
    assert page.lines == []


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        # kube-scheduler may be unavailable: without requests a pod still waits.
        ({"decisions": [a_decision(last_at=ago(hours=2))]}, "waiting"),
        ({"decisions": [over("deleted", ago(seconds=1))]}, "deleted, never placed"),
        ({"decisions": [over("gone", ago(seconds=1))]}, "deleted, never placed"),
        ({"decisions": [over("finished", ago(seconds=1))]}, "no longer waiting"),
        ({"decisions": [over("deleted", NOW + timedelta(seconds=1))]}, "waiting"),
        ({"attempts": [an_attempt()]}, "holds its slices"),
        ({"attempts": [an_attempt(state="reserved")]}, "being placed"),
        ({"attempts": [an_attempt(state="released", ended_at=ago(minutes=1))]}, "ended"),
        # At a moment of the past it holds what it returned later.
        (
            {"attempts": [an_attempt(state="released", ended_at=NOW + timedelta(minutes=1))]},
            "holds its slices",
        ),
    ],
)
def test_a_pods_state_is_that_of_the_moment(changes: dict[str, Any], status: str) -> None:
    assert pod_page(a_pod(**changes), NOW).status == status


def test_a_card_that_is_not_as_granted_has_its_text_and_its_limit_is_unknown() -> None:
    lost = GrantedCardCondition(kind=ConditionKind.LOST, sentence="card 0 is lost", advice="Look")
    card = PodCard(
        pod=PodRef(uid=PodUid("u"), namespace="nlp", name="train-1"),
        container="main",
        uuid=GpuUuid("GPU-1"),
        condition=lost,
    )
    holds = a_pod(attempts=[an_attempt()], limits_checked_at=NOW)
    assert pod_page(holds, NOW).lines[0].enforced == "enforced"

    page = pod_page(replace(holds, cards=[card]), NOW)

    assert page.troubles == ["card 0 is lost. Look."]
    assert page.lines[0].enforced == "unknown"
    cordoned = replace(card, condition=replace(lost, kind=ConditionKind.CORDONED))
    assert pod_page(replace(holds, cards=[cordoned]), NOW).lines[0].enforced == "enforced"


def test_what_nobody_measured_or_checked_of_a_pod_is_unknown() -> None:
    [line] = pod_page(a_pod(attempts=[an_attempt()]), NOW).lines
    assert (line.used_mib, line.enforced) == (None, "unknown")

    use = {
        "at": NOW,
        "device_uuid": "GPU-1",
        "pod_uid": "u",
        "container": "main",
        "memory_mib": 4096.0,
        "core_percent": None,
    }
    checked = a_pod(attempts=[an_attempt()], use=[use], limits_checked_at=ago(minutes=1))
    [line] = pod_page(checked, NOW).lines
    assert (line.used_mib, line.core_used_percent, line.enforced) == (4096.0, None, "enforced")


def test_a_limit_that_was_not_held_is_shown_while_it_lasts() -> None:
    breach = {
        "container": "main",
        "device_uuid": "GPU-1",
        "state": "bypassed",
        "reason": "",
        "began_at": ago(minutes=9),
        "ended_at": None,
    }
    pod = a_pod(attempts=[an_attempt()], limits=[breach], limits_checked_at=NOW)
    assert pod_page(pod, NOW).lines[0].enforced == "bypassed"


def test_changes_of_one_moment_stand_in_their_sequence() -> None:
    states = ["reserved", "binding", "bound", "allocated"]
    events = [
        {"at": NOW, "node": "n1", "state": state, "reason": "", "actor": ""} for state in states
    ]
    decision = a_decision(at=NOW, last_at=NOW, outcome="placed", repeat_count=1)
    page = pod_page(a_pod(events=events, decisions=[decision, a_decision()]), NOW)

    assert [text.split()[0].strip(":") for _, text in page.timeline] == [
        *("refused", "placed"),
        *states,
    ]


def test_a_state_of_a_grant_has_its_length_and_rank_and_an_end_has_none() -> None:
    events = [
        {"at": at, "node": "n1", "state": state, "reason": "", "actor": ""}
        for at, state in (
            (ago(seconds=3600.04), "reserved"),
            (ago(hours=1), "bound"),
            (ago(minutes=20), "released"),
        )
    ]
    hour = LastHour(states_ms={"reserved": [10.0, 20.0, 30.0, 40.0, 50.0]})

    page = pod_page(a_pod(events=events), NOW, hour=hour)

    assert [text for _, text in page.timeline] == [
        "reserved on n1, 40.0 ms · p80",
        "bound on n1, 40 min",
        "released on n1",
    ]


# --- the time slider: its window, its steps, and a run through it


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

    assert moments["◀ previous change"] == ago(minutes=70)
    assert moments["next change ▶"] == ago(minutes=10)
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


# --- series of a chart: unknown values are gaps, and grants add up from their changes


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


# --- steps beside those of others, and spans of all services on one scale


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
        "20.0 ms between steps, outside HAMi's services",
        "reserve: 30.0 ms of it, drawn pale, ran after the response was sent",
        "release: 10 min later, in 10.0 ms",
    ]
    assert not drawn.ranked
