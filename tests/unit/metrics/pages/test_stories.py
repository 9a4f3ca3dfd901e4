"""One pod's story, what waits, the time slider, and the bill."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_metrics.pages.domain.details import (
    Attempt,
    ChangeStrip,
    GrantChange,
    LatestUse,
    LimitBreach,
    PodRecord,
    Slice,
    StoredDecision,
)
from hami_metrics.pages.views.elements.viewer import EVERYBODY, PageViewer
from hami_metrics.pages.views.elements.waterfall import decision_waterfall, grant_waterfall
from hami_metrics.pages.views.history import history_page, since_first, window_around
from hami_metrics.pages.views.pending import pending_page
from hami_metrics.pages.views.pod import pod_page
from hami_metrics.pages.views.showback import month_of
from hamicommon.errors import InvalidRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.metrics.pages.clusters import NOW


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


def a_decision(**changes: Any) -> StoredDecision:
    given_: dict[str, Any] = {
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
        **changes,
    }
    return StoredDecision(**given_)


def an_attempt(**changes: Any) -> Attempt:
    given_: dict[str, Any] = {
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
            Slice(
                container="main",
                role="app",
                device_uuid="GPU-1",
                memory_mib=8192,
                core_percent=30,
                slots=1,
            )
        ],
        **changes,
    }
    return Attempt(**given_)


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
        "latest": (),
        "series": (),
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
        ({"decisions": [a_decision(last_at=ago(minutes=11))]}, "not tried any more"),
        ({"attempts": [an_attempt()]}, "holds its slices"),
        ({"attempts": [an_attempt(state="reserved")]}, "being placed"),
        ({"attempts": [an_attempt(state="released", ended_at=ago(minutes=1))]}, "ended"),
        # At a moment of the past it holds what it gave back later.
        (
            {"attempts": [an_attempt(state="released", ended_at=NOW + timedelta(minutes=1))]},
            "holds its slices",
        ),
    ],
)
def test_a_pods_state_is_that_of_the_moment(changes: dict[str, Any], status: str) -> None:
    assert pod_page(a_pod(**changes), NOW).status == status


def test_what_nobody_measured_or_checked_of_a_pod_is_unknown() -> None:
    [line] = pod_page(a_pod(attempts=[an_attempt()]), NOW).lines
    assert (line.used_mib, line.used, line.enforced) == (None, None, "unknown")

    use = LatestUse(
        at=NOW,
        device_uuid="GPU-1",
        pod_uid="u",
        container="main",
        memory_mib=4096.0,
        memory_limit_mib=8192.0,
        core_percent=None,
    )
    checked = a_pod(attempts=[an_attempt()], latest=[use], limits_checked_at=ago(minutes=1))
    [line] = pod_page(checked, NOW).lines
    assert (line.used, line.core_used_percent, line.enforced) == (50, None, "enforced")


def test_a_limit_that_was_not_held_is_shown_while_it_lasts() -> None:
    breach = LimitBreach(
        container="main",
        device_uuid="GPU-1",
        state="bypassed",
        reason="",
        began_at=ago(minutes=9),
        ended_at=None,
    )
    pod = a_pod(attempts=[an_attempt()], limits=[breach], limits_checked_at=NOW)
    assert pod_page(pod, NOW).lines[0].enforced == "bypassed"


@given(st.dictionaries(st.text(max_size=8), st.floats(0, 1e6), max_size=9))
def test_bars_of_a_decision_stay_in_the_picture_and_one_is_critical(
    phases: dict[str, float],
) -> None:
    drawn = decision_waterfall(phases)

    assert all(step.x >= 150 and step.x + step.width <= 1000 for step in drawn.steps)
    if drawn.steps and phases.keys() - {"total"}:
        assert sum(step.critical for step in drawn.steps) == 1


def test_a_long_run_is_folded_so_that_the_work_can_be_read() -> None:
    def change(seconds: float, state: str) -> GrantChange:
        at = NOW - timedelta(hours=5) + timedelta(seconds=seconds)
        return GrantChange(
            at=at, attempt=1, node="n1", previous_state=None, state=state, reason="", actor=""
        )

    events = [change(0, "reserved"), change(0.04, "bound"), change(2, "allocated")]
    drawn = grant_waterfall(events, NOW)

    assert [(step.name, step.gap) for step in drawn.steps] == [
        ("reserved", False),
        ("bound", False),
        ("allocated", True),
    ]
    assert "4 h 59 min" in drawn.steps[2].text
    assert drawn.steps[1].width > 500
    assert all(step.x + step.width <= 1000 for step in drawn.steps)


def test_changes_of_one_moment_stand_in_their_sequence() -> None:
    states = ["reserved", "binding", "bound", "allocated"]
    events = [
        GrantChange(
            at=NOW, attempt=1, node="n1", previous_state=None, state=state, reason="", actor=""
        )
        for state in states
    ]
    decision = a_decision(at=NOW, last_at=NOW, outcome="placed", repeat_count=1)
    page = pod_page(a_pod(events=events, decisions=[decision, a_decision()]), NOW)

    assert [text.split()[0].strip(":") for _, text in page.timeline] == [
        *("refused", "placed"),
        *states,
    ]


def waiting(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "since_at": ago(minutes=60 - number),
        "pod_uid": f"u{number}",
        "namespace": "nlp",
        "pod_name": f"batch-{number}",
        "last_at": ago(seconds=3),
        "attempt_count": 3,
        "card_count": 1,
        "memory_bytes": 40 * 2**30,
        "memory_ratio": None,
        "core_ratio": 0.3,
        "reason_code": "CardInsufficientMemory",
        "summary": "no card has 40 GiB free",
        "ahead_count": number,
        **changes,
    }


def test_pods_of_one_owner_that_wait_alike_are_one_line() -> None:
    reasons = [{"reason_code": "CardInsufficientMemory", "pod_count": 4, "oldest_at": ago(hours=1)}]
    rows = [*(waiting(n) for n in range(3)), waiting(9, namespace="vision")]
    page = pending_page(reasons, rows, EVERYBODY, "", None)

    assert [(line.namespace, line.name, line.count) for line in page.lines] == [
        ("nlp", "batch-0", 3),
        ("vision", "batch-9", 1),
    ]
    assert page.lines[0].asks == "1 x 40 GiB 30 % cores"
    assert page.total == 4


def test_who_may_not_list_a_namespace_sees_what_waits_without_names_and_sentences() -> None:
    viewer = PageViewer(namespaces=frozenset())
    [line] = pending_page([], [waiting(1, summary="quota of nlp")], viewer, "", None).lines

    assert (line.namespace, line.name, line.pod_uid) == ("other", "", "")
    assert line.because == "CardInsufficientMemory"


def test_a_request_that_was_not_recorded_is_unknown() -> None:
    row = waiting(1, card_count=None, memory_bytes=None, core_ratio=None)
    assert pending_page([], [row], EVERYBODY, "", None).lines[0].asks == "?"


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
    assert [(bar.x, bar.changes) for bar in page.bars] == [(500.0, 5)]
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
        return since_first(day, NOW, at=at, first=first)

    assert begin(ago(minutes=20)) == ago(minutes=21)
    assert begin(ago(seconds=5)) == ago(minutes=1)
    assert begin(ago(days=3)) == day
    assert begin(None) == day
    assert begin(ago(minutes=20), at=ago(minutes=30)) == day


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
