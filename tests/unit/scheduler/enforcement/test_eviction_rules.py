"""When a pod beyond its grant is ended: on fresh, known, repeated evidence and nothing less."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hami_scheduler.enforcement.periods import EvictionPolicy, LimitPeriod, due
from hamicommon.domain.granted_cards import LimitState
from hamicommon.events import LimitFinding

from tests.unit.scheduler.enforcement.test_periods import NOW, a_finding, a_period, ago

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
