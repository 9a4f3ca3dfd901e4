"""When a pod beyond its grant is ended: on fresh, known, repeated evidence and nothing less."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hami_scheduler.enforcement.eviction_rules import (
    EvictionPolicy,
    due,
    grace_s,
    why_not,
    with_condition,
)
from hami_scheduler.enforcement.periods import LimitPeriod
from hamicommon.domain.limits import LimitState
from hamicommon.events import LimitFinding

from tests.unit.scheduler.enforcement.test_periods import NODE, NOW, a_finding, a_period, ago

POLICY = EvictionPolicy(after_s=30)


def ends(
    period: LimitPeriod | None = None,
    finding: LimitFinding | None = None,
    *,
    received_at: datetime = NOW,
) -> bool:
    return due(
        period or a_period(),
        finding or a_finding(),
        received_at=received_at,
        now=NOW,
        policy=POLICY,
    )


def test_a_pod_that_goes_on_beyond_its_grant_is_ended() -> None:
    assert ends()
    assert ends(a_period(state=LimitState.BYPASSED))


@pytest.mark.parametrize(
    "less",
    [
        {"period": a_period(state=LimitState.UNKNOWN)},
        {"finding": a_finding(violating=False)},
        {"period": a_period(began_at=ago(29))},
        {"period": a_period(recorded_at=ago(9))},
        {"period": a_period(recorded_at=None)},
        {"received_at": ago(16)},
    ],
    ids=["unknown", "well now", "too short", "one look", "not written", "a stale report"],
)
def test_nothing_less_ends_a_pod(less: dict[str, Any]) -> None:
    assert not ends(**less)


def a_pod(**changes: Any) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "metadata": {"uid": "uid-1"},
        "spec": {"nodeName": NODE},
        "status": {"phase": "Running"},
    }
    for part, fields in changes.items():
        pod[part] = pod[part] | fields
    return pod


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"metadata": {"uid": "another"}}, "another pod"),
        ({"spec": {"nodeName": "node-2"}}, "not on node-1"),
        ({"metadata": {"deletionTimestamp": "now"}}, "being deleted"),
        ({"status": {"phase": "Failed"}}, "over"),
        ({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, "static pod"),
    ],
)
def test_the_pod_is_looked_at_again_before_it_is_ended(
    changes: dict[str, Any], reason: str
) -> None:
    found = why_not(a_pod(**changes), a_period())
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize(("wanted", "given"), [(None, 30), (5, 5), (0, 1), (86_400, 30)])
def test_a_pods_author_gets_no_day_of_grace(wanted: int | None, given: int) -> None:
    spec = {} if wanted is None else {"terminationGracePeriodSeconds": wanted}
    assert grace_s(a_pod(spec=spec)) == given


def test_the_condition_takes_the_place_of_an_earlier_one() -> None:
    before = [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "False"}]
    after = with_condition(before, "LimitExceeded", "why", now=NOW)
    assert [each["type"] for each in after] == ["Ready", "DisruptionTarget"]
    assert after[1] == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "LimitExceeded",
        "message": "why",
        "lastTransitionTime": "2026-11-23T12:00:00Z",
    }
