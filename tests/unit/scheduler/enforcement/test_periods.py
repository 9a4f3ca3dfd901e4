"""Periods of limits: a node's check begins, continues and ends them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hami_scheduler.enforcement.periods import LimitPeriod, PeriodChanges, changes
from hamicommon.domain.granted_cards import LimitState
from hamicommon.events import LimitCheck, LimitFinding

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
NODE = "node-1"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_finding(**fields: Any) -> LimitFinding:
    known: dict[str, Any] = {
        "pod_uid": "uid-1",
        "namespace": "default",
        "pod": "pod-1",
        "container": "main",
        "uuid": "GPU-1",
        "state": "exceeded",
        "since": ago(10),
        "held_mib": 9000,
        "peak_mib": 9000,
        "granted_mib": 4096,
        "violating": True,
        "reason": "it holds too much",
    }
    return LimitFinding(**(known | fields))


def a_period(**fields: Any) -> LimitPeriod:
    known: dict[str, Any] = {
        "id": 7,
        "node": NODE,
        "pod_uid": "uid-1",
        "namespace": "default",
        "pod_name": "pod-1",
        "container": "main",
        "device_uuid": "GPU-1",
        "state": LimitState.EXCEEDED,
        "reason": "it holds too much",
        "began_at": ago(60),
        "recorded_at": ago(55),
        "held_mib": 8000,
        "peak_mib": 9500,
        "granted_mib": 4096,
    }
    return LimitPeriod(**(known | fields))


def compute_changes(
    *findings: LimitFinding, open_periods: tuple[LimitPeriod, ...] = (), settled: bool = True
) -> PeriodChanges:
    check = LimitCheck(
        node=NODE, agent_id="a", sequence=1, checked_at=NOW, settled=settled, findings=findings
    )
    return changes(open_periods, check, findings, received_at=NOW)


def test_a_first_finding_begins_a_period() -> None:
    [period] = compute_changes(a_finding()).begun
    assert (period.began_at, period.state, period.node) == (ago(10), LimitState.EXCEEDED, NODE)
    assert period.sentence == "container main on node-1: it holds too much"


def test_the_same_state_goes_on_with_its_own_begin_and_the_highest_peak() -> None:
    """Also after a restart of the agent, which counts from the start."""
    found = compute_changes(a_finding(since=ago(5)), open_periods=(a_period(),))
    [period] = found.going_on
    assert (period.id, period.began_at, period.held_mib) == (7, ago(60), 9000)
    assert period.peak_mib == 9500
    assert not found.begun
    assert not found.over


def test_another_state_ends_the_period_where_it_begins_another() -> None:
    found = compute_changes(a_finding(state="bypassed", since=ago(20)), open_periods=(a_period(),))
    assert found.over == ((a_period(), ago(20)),)
    assert [(p.state, p.began_at) for p in found.begun] == [(LimitState.BYPASSED, ago(20))]


def test_who_is_not_found_any_more_is_over_unless_the_agent_has_only_begun() -> None:
    period = a_period()
    assert compute_changes(open_periods=(period,)).over == ((period, NOW),)
    assert compute_changes(open_periods=(period,), settled=False) == PeriodChanges()


def test_no_clock_of_a_node_makes_a_period_of_the_future_or_one_that_ends_before_it_began() -> None:
    [period] = compute_changes(a_finding(since=ago(-3600))).begun
    assert period.began_at == NOW
    found = compute_changes(a_finding(state="unknown", since=ago(9000)), open_periods=(a_period(),))
    assert found.over[0][1] == ago(60)
    assert found.begun[0].began_at == ago(60)


def test_containers_and_cards_have_periods_of_their_own() -> None:
    found = compute_changes(
        a_finding(),
        a_finding(uuid="GPU-2"),
        a_finding(container="other"),
        open_periods=(a_period(),),
    )
    assert len(found.going_on) == 1
    assert {p.key for p in found.begun} == {
        ("uid-1", "main", "GPU-2"),
        ("uid-1", "other", "GPU-1"),
    }
