"""Whether a pod that is beyond its grant is ended now. Pure.

Only on what is known, only on a fresh report, only at a second look after a grace period of the
scheduler's own, and only so many pods in a minute: a card whose driver misreports, or a node that
lies about its own pods, ends few of them before somebody looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from hamicommon.events import LimitFinding

from hami_scheduler.enforcement.periods import LimitPeriod

MAX_REPORT_AGE_S = 15.0
"""An older report shows how it was; the next one comes within ten seconds."""
SECOND_LOOK_S = 10.0
"""Between the report that began the period and the one that ends the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """The operator's settings for eviction."""

    after_s: float = 30.0
    per_minute: int = 5
    """In the whole cluster."""


def due(
    period: LimitPeriod,
    finding: LimitFinding,
    *,
    received_at: datetime,
    now: datetime,
    policy: EvictionPolicy,
) -> bool:
    """Whether the report gives reason to end the pod."""
    if not (period.state.violates and finding.violating) or period.recorded_at is None:
        return False
    if now - received_at > timedelta(seconds=MAX_REPORT_AGE_S):
        return False
    lasted_s = (received_at - period.began_at).total_seconds()
    known_s = (now - period.recorded_at).total_seconds()
    return lasted_s >= policy.after_s and known_s >= SECOND_LOOK_S
