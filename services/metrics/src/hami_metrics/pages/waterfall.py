"""Pictures of a pod's steps: bars to scale, long waits folded. Pure.

A wait that is longer than `FOLD` times all work is drawn as a gap of fixed width with its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hamicommon.telemetry.waterfall import FEWEST_COMPARED, FoldedWait, Waterfall, WaterfallSpan

from hami_metrics.pages.amounts import span
from hami_metrics.pages.cluster import Row

WIDTH = 1000
ROW = 20
LABEL = 150
"""Width of the names of steps."""
TEXT = 140
"""Width of the longest length and rank, right of a bar."""
TRACE_LABEL = 190
TRACE_TEXT = 230
FOLDED_TEXT = 180
"""Width of the length of a wait, right of its gap."""
MIN_BAR = 1.5
GAP = 40
FOLD = 20
SHORTEST_MS = 0.001
"""Phases are stored to the microsecond; less is nothing that was measured."""
FAILED = frozenset({"refused", "error", "denied"})
"""Outcomes of spans that are marked."""
ENDS = frozenset({"released", "expired", "failed", "released_unconfirmed"})
ORDER = ("parse", "queue", "place", "explain", "reserve", "publish", "reply")
"""Phases of a decision in their order; others come after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHour:
    """Steps of all pods in the hour before."""

    phases_ms: Sequence[Mapping[str, float]] = ()
    """Phases of each decision."""
    states_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By state of a grant: how long each was in it."""

    def phase(self, name: str) -> list[float]:
        """Return what that phase took in each decision that has it."""
        return [phases[name] for phases in self.phases_ms if name in phases]


def rank(length: float, others: Sequence[float]) -> int | None:
    """Return percent of `others` that took no longer; None: too few to compare with."""
    if len(others) < FEWEST_COMPARED:
        return None
    return round(100 * sum(each <= length for each in others) / len(others))


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStep:
    """One bar, or a folded wait (`gap`)."""

    name: str
    x: float
    width: float
    y: int
    text: str
    critical: bool = False
    """The longest, which decides how long all takes."""
    gap: bool = False
    failed: bool = False
    service: str = ""
    """Service of a span; empty: none in particular."""
    rank: int | None = None
    """Percentile among steps of its kind in the hour before; None: too few of them."""
    behind: float = 0.0
    """Width of the part that went on after the step above it had answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """A picture with its title; no steps: nothing was measured."""

    steps: Sequence[PictureStep] = ()
    title: str = ""
    notes: Sequence[str] = ()
    """Lines below it."""

    @property
    def height(self) -> int:
        """Height of all bars."""
        return ROW * len(self.steps)

    @property
    def ranked(self) -> bool:
        """A rank is shown."""
        return any(step.rank is not None for step in self.steps)


def decision_waterfall(phase_ms: Mapping[str, float], hour: LastHour) -> StepPicture:
    """Draw the phases of one decision, one after another, under their total."""
    phases = {name: ms for name, ms in phase_ms.items() if name != "total" and ms >= 0}
    total = max(phase_ms.get("total", 0.0), sum(phases.values()))
    if total < SHORTEST_MS:
        return StepPicture()
    scale = (WIDTH - LABEL - TEXT) / total
    longest = max(phases, key=lambda name: phases[name], default="")
    ordered = sorted(
        phases, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    )
    begins, at = {"filter": 0.0}, 0.0
    for name in ordered:
        begins[name] = at
        at += phases[name]
    rows = [("filter", 0.0, total, "total"), *((n, begins[n], phases[n], n) for n in ordered)]
    return StepPicture(
        steps=[
            PictureStep(
                name=name,
                x=round(LABEL + begin * scale, 1),
                width=round(max(MIN_BAR, ms * scale), 1),
                y=place * ROW,
                text=_milliseconds(ms),
                critical=place > 0 and name == longest,
                rank=rank(ms, hour.phase(kind)),
            )
            for place, (name, begin, ms, kind) in enumerate(rows)
        ],
        title=f"decision: {_milliseconds(total)} in all",
    )


def grant_waterfall(events: Sequence[Row], until: datetime, hour: LastHour) -> StepPicture:
    """Draw how long each state of a pod's grants lasted; the last one up to its end or `until`.

    States that outlast the shortest work by far (the pod runs) are folded.
    """
    if not events:
        return StepPicture()
    times = [*(event["at"] for event in events), until]
    lengths = [
        max(0.0, (times[n + 1] - at).total_seconds() * 1000) for n, at in enumerate(times[:-1])
    ]
    if events[-1]["state"] in ENDS:
        lengths[-1] = 0.0
    median = sorted(lengths)[len(lengths) // 2]
    work = sum(ms for ms in lengths if ms <= FOLD * max(1.0, median))
    folded = [ms > FOLD * max(1.0, work) for ms in lengths]
    drawn = sum(ms for ms, fold in zip(lengths, folded, strict=True) if not fold)
    room = WIDTH - LABEL - (FOLDED_TEXT if any(folded) else TEXT) - GAP * sum(folded)
    scale = room / drawn if drawn else 0.0
    steps, x = [], float(LABEL)
    for place, (event, ms, fold) in enumerate(zip(events, lengths, folded, strict=True)):
        width = float(GAP) if fold else max(MIN_BAR, ms * scale)
        steps.append(
            PictureStep(
                name=event["state"],
                x=round(x, 1),
                width=round(width, 1),
                y=place * ROW,
                text=f"⋯ {span(ms / 1000)}, not to scale" if fold else _milliseconds(ms),
                gap=fold,
                rank=rank(ms, hour.states_ms.get(event["state"], ())),
            )
        )
        x += width
    return StepPicture(steps=steps, title="states of its grants")


def trace_waterfall(drawn: Waterfall) -> StepPicture:
    """Draw spans of all services on one scale; waits that outlast the work are folded."""
    scale = (WIDTH - TRACE_LABEL - TRACE_TEXT) / drawn.scale_us
    steps, x = [], float(TRACE_LABEL)
    for place, row in enumerate(drawn.rows):
        if isinstance(row, FoldedWait):
            text = f"⋯ {span(row.lasted_us / 1_000_000)} waiting, not to scale"
            steps.append(PictureStep(name="⋯", x=x, width=GAP, y=place * ROW, text=text, gap=True))
            continue
        x = round(TRACE_LABEL + row.offset_us * scale, 1)
        width = round(max(MIN_BAR, row.span.lasted_us * scale), 1)
        steps.append(
            PictureStep(
                name="\u2003" * row.depth + row.span.name,
                x=x,
                width=width,
                behind=round(min(width, row.behind_us * scale), 1),
                y=place * ROW,
                text=f"{_milliseconds(row.span.lasted_us / 1000)} · {row.span.service}",
                critical=row.span is drawn.longest,
                failed=row.span.failed or row.span.outcome in FAILED,
                service=row.span.service,
                rank=row.percentile,
            )
        )
    work, total = _milliseconds(drawn.work_us / 1000), _length(drawn.total_us)
    more = f", {drawn.left_out} short spans left out" if drawn.left_out else ""
    title = f"{work} of work in {total}{more}"
    return StepPicture(steps=steps, title=title, notes=list(_notes(drawn)))


def _notes(drawn: Waterfall) -> Iterator[str]:
    if drawn.between_us > 0:
        yield f"{_length(drawn.between_us)} between steps, in which none of our services worked"
    for row in drawn.rows:
        if isinstance(row, WaterfallSpan) and row.behind_us:
            yield (
                f"{row.span.name}: {_length(row.behind_us)} of it, drawn pale, "
                "went on behind an answer that was given"
            )
    for row in drawn.releases:
        later = _length(max(0, row.span.start_us - drawn.ended_us))
        yield f"{row.span.name}: {later} later, in {_length(row.span.lasted_us)}"


def _milliseconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"


def _length(us: int) -> str:
    """Write a wait as exactly as it is worth: `573.2 ms`, `41 min`."""
    return _milliseconds(us / 1000) if us < 60_000_000 else span(us / 1_000_000)
