"""Compare steps of a pod with those of others, and draw its spans. Pure.

A wait that outlasts all work by far is drawn as a gap of fixed width with its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hamicommon.telemetry.waterfall import FEWEST_COMPARED, FoldedWait, Waterfall, WaterfallSpan

from hami_metrics.pages.amounts import length, milliseconds, span

WIDTH = 1000
ROW = 20
LABEL = 190
"""Width of the column of names."""
TEXT = 230
"""Width of the longest text right of a bar."""
MIN_BAR = 1.5
GAP = 40
SHORTEST_MS = 0.001
"""Minimum duration of a phase; shorter ones are below the stored precision."""
FAILED = frozenset({"refused", "error", "denied"})
"""Outcomes of spans that are marked as failures."""
ORDER = ("parse", "queue", "place", "explain", "reserve", "publish", "reply")
"""Phases of a decision in order; unknown ones come after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHour:
    """Steps of all pods in the hour before."""

    phases_ms: Sequence[Mapping[str, float]] = ()
    """Durations of the phases of each decision."""
    states_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Durations in each state of a grant."""

    def phase(self, name: str) -> list[float]:
        """Return the durations of a phase in the decisions that have it."""
        return [phases[name] for phases in self.phases_ms if name in phases]


def rank(length: float, others: Sequence[float]) -> int | None:
    """Return the percent of `others` that took no longer; None: too few."""
    if len(others) < FEWEST_COMPARED:
        return None
    return round(100 * sum(each <= length for each in others) / len(others))


class DecisionStep(NamedTuple):
    """One phase of a decision."""

    name: str
    ms: float
    critical: bool
    """Whether it is the longest phase."""
    rank: int | None
    """Percentile among decisions of the hour before; None: too few."""


def decision_steps(phase_ms: Mapping[str, float], hour: LastHour) -> list[DecisionStep]:
    """Return a decision's phases in order, under their total; empty: not measured."""
    phases = {name: ms for name, ms in phase_ms.items() if name != "total" and ms >= 0}
    total = max(phase_ms.get("total", 0.0), sum(phases.values()))
    if total < SHORTEST_MS:
        return []
    longest = max(phases, key=lambda name: phases[name], default="")
    order = [*(name for name in ORDER if name in phases), *sorted(phases.keys() - set(ORDER))]
    steps = [DecisionStep("filter", total, critical=False, rank=rank(total, hour.phase("total")))]
    for name in order:
        among = rank(phases[name], hour.phase(name))
        steps.append(DecisionStep(name, phases[name], critical=name == longest, rank=among))
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStep:
    """Bar in the picture, or a folded wait (`gap`)."""

    name: str
    x: float
    width: float
    y: int
    text: str
    critical: bool = False
    """Whether it is the longest step."""
    gap: bool = False
    failed: bool = False
    service: str = ""
    """Service of a span; empty: none."""
    rank: int | None = None
    """Percentile among steps of its kind in the hour before; None: too few."""
    behind: float = 0.0
    """Width of the part after the end of its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """Picture with its title; without steps nothing was measured."""

    steps: Sequence[PictureStep] = ()
    title: str = ""
    notes: Sequence[str] = ()
    """Lines below the picture."""

    @property
    def height(self) -> int:
        """Return the height of all bars."""
        return ROW * len(self.steps)

    @property
    def ranked(self) -> bool:
        """Return whether a rank is shown."""
        return any(step.rank is not None for step in self.steps)


def trace_waterfall(drawn: Waterfall) -> StepPicture:
    """Draw spans of all services on one scale; long waits are folded."""
    scale = (WIDTH - LABEL - TEXT) / drawn.scale_us
    steps, x = [], float(LABEL)
    for place, row in enumerate(drawn.rows):
        if isinstance(row, FoldedWait):
            text = f"⋯ {span(row.duration_us / 1_000_000)} waiting, not to scale"
            steps.append(PictureStep(name="⋯", x=x, width=GAP, y=place * ROW, text=text, gap=True))
            continue
        x = round(LABEL + row.offset_us * scale, 1)
        width = round(max(MIN_BAR, row.span.duration_us * scale), 1)
        steps.append(
            PictureStep(
                name="\u2003" * row.depth + row.span.name,
                x=x,
                width=width,
                behind=round(min(width, row.behind_us * scale), 1),
                y=place * ROW,
                text=f"{milliseconds(row.span.duration_us / 1000)} · {row.span.service}",
                critical=row.span is drawn.longest,
                failed=row.span.failed or row.span.outcome in FAILED,
                service=row.span.service,
                rank=row.percentile,
            )
        )
    work, total = milliseconds(drawn.work_us / 1000), length(drawn.total_us / 1000)
    more = f", {drawn.left_out} short spans omitted" if drawn.left_out else ""
    title = f"{work} of work in {total}{more}"
    return StepPicture(steps=steps, title=title, notes=list(_notes(drawn)))


def _notes(drawn: Waterfall) -> Iterator[str]:
    if drawn.between_us > 0:
        between = length(drawn.between_us / 1000)
        yield f"{between} between steps, outside HAMi's services"
    for row in drawn.rows:
        if isinstance(row, WaterfallSpan) and row.behind_us:
            yield (
                f"{row.span.name}: {length(row.behind_us / 1000)} of it, drawn pale, "
                "ran after the response was sent"
            )
    for row in drawn.releases:
        later = length(max(0, row.span.start_us - drawn.ended_us) / 1000)
        yield f"{row.span.name}: {later} later, in {length(row.span.duration_us / 1000)}"
