"""Where the outcome of a call of kube-scheduler shows: the pod's events, log lines and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from hami_scheduler.line_budget import LineBudget
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import Announcer
from hami_scheduler.pod_marks import PodMarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What `/filter` and `/bind` report through; they share the pods' line budget."""

    announcer: Announcer
    marks: PodMarks
    """Which pods get Normal events."""
    lines: LineBudget
    instruments: SchedulerInstruments
