"""The picture of one decision and of what followed: bars to scale, long waits folded. Pure.

A wait that is longer than `FOLD` times all work is drawn as a gap of fixed width with its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hamicommon.telemetry.waterfall import FoldedWait, Waterfall, WaterfallSpan

from hami_metrics.pages.domain.details import GrantChange
from hami_metrics.pages.domain.ranks import LastHour, rank
from hami_metrics.pages.views.elements.amounts import span

WIDTH = 1000
ROW = 20
LABEL = 150
"""Of the width: names of the steps."""
TEXT = 140
"""Of the width: the longest length and rank, right of a bar."""
TRACE_LABEL = 190
FAILED = frozenset({"refused", "error", "denied"})
"""Outcomes of spans that are marked."""
FOLD = 20
GAP = 40
FOLDED_TEXT = 180
"""Of the width: the length of a wait, right of its gap."""
SHORTEST_MS = 0.001
"""Phases are stored to the microsecond; less is nothing that was measured."""
ORDER = ("parse", "queue", "place", "explain", "reserve", "publish", "reply")
"""In which the phases of a decision follow on one another; others come after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureStep:
    """One bar; `critical`: the longest, which decides how long all takes."""

    name: str
    x: float
    width: float
    y: int
    text: str
    critical: bool = False
    gap: bool = False
    failed: bool = False
    service: str = ""
    """Whose span it is; empty: nobody's in particular."""
    rank: int | None = None
    """Percentile among steps of its kind in the hour before; None: too few of them."""
    behind: float = 0.0
    """Of the width: what went on after the step above it had answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPicture:
    """A picture with a height; no steps: nothing was measured."""

    steps: Sequence[PictureStep]
    height: int
    title: str
    notes: Sequence[str] = ()
    """Lines below it."""

    @property
    def ranked(self) -> bool:
        """A rank is shown."""
        return any(step.rank is not None for step in self.steps)


def decision_waterfall(phase_ms: Mapping[str, float], hour: LastHour | None = None) -> StepPicture:
    """Phases of one decision, one after another, under their total."""
    hour = hour or LastHour()
    phases = {name: ms for name, ms in phase_ms.items() if name != "total" and ms >= 0}
    total = max(phase_ms.get("total", 0.0), sum(phases.values()))
    if total < SHORTEST_MS:
        return StepPicture(steps=(), height=0, title="")
    scale = (WIDTH - LABEL - TEXT) / total
    steps = [_step("filter", 0.0, total, 0, scale, among=hour.of_phase("total"))]
    longest = max(phases, key=lambda name: phases[name], default="")
    at = 0.0
    for row, name in enumerate(sorted(phases, key=_place), start=1):
        steps.append(
            _step(
                *(name, at, phases[name], row, scale),
                critical=name == longest,
                among=hour.of_phase(name),
            )
        )
        at += phases[name]
    return StepPicture(
        steps=steps, height=ROW * len(steps), title=f"decision: {_milliseconds(total)} in all"
    )


def _place(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def _step(
    name: str,
    at: float,
    ms: float,
    row: int,
    scale: float,
    *,
    among: Sequence[float],
    critical: bool = False,
) -> PictureStep:
    return PictureStep(
        name=name,
        x=round(LABEL + at * scale, 1),
        width=round(max(1.5, ms * scale), 1),
        y=row * ROW,
        text=_milliseconds(ms),
        critical=critical,
        rank=rank(ms, among),
    )


def _milliseconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.1f} ms"


def _length(us: int) -> str:
    """As exact as a wait is worth: `573.2 ms`, `41 min`."""
    return _milliseconds(us / 1000) if us < 60_000_000 else span(us / 1_000_000)


def grant_waterfall(
    events: Sequence[GrantChange], until: datetime, hour: LastHour | None = None
) -> StepPicture:
    """How long each state of a pod's grants lasted; the last one up to its end or `until`.

    States that outlast the shortest work by far (the pod runs) are folded.
    """
    if not events:
        return StepPicture(steps=(), height=0, title="")
    times = [event.at for event in events]
    lengths = [
        max(0.0, ((times[n + 1] if n + 1 < len(times) else until) - at).total_seconds() * 1000)
        for n, at in enumerate(times)
    ]
    last_ends = events[-1].state in ("released", "expired", "failed", "released_unconfirmed")
    if last_ends:
        lengths[-1] = 0.0
    ordered = sorted(lengths)
    work = sum(ms for ms in ordered if ms <= FOLD * max(1.0, ordered[len(ordered) // 2]))
    folded = [ms > FOLD * max(1.0, work) for ms in lengths]
    drawn = sum(ms for ms, fold in zip(lengths, folded, strict=True) if not fold)
    room = WIDTH - LABEL - (FOLDED_TEXT if any(folded) else TEXT) - GAP * sum(folded)
    scale = room / drawn if drawn else 0.0
    steps, x = [], float(LABEL)
    for row, (event, ms, fold) in enumerate(zip(events, lengths, folded, strict=True)):
        width = float(GAP) if fold else max(1.5, ms * scale)
        steps.append(
            PictureStep(
                name=event.state,
                x=round(x, 1),
                width=round(width, 1),
                y=row * ROW,
                text=f"⋯ {span(ms / 1000)}, not to scale" if fold else _milliseconds(ms),
                gap=fold,
                rank=rank(ms, (hour or LastHour()).states_ms.get(event.state, ())),
            )
        )
        x += width
    return StepPicture(steps=steps, height=ROW * len(steps), title="states of its grants")


def trace_waterfall(drawn: Waterfall) -> StepPicture:
    """Spans of all services on one scale; waits that outlast the work are folded."""
    scale = (WIDTH - TRACE_LABEL - 230) / drawn.scale_us
    steps, x = [], float(TRACE_LABEL)
    for place, row in enumerate(drawn.rows):
        if isinstance(row, FoldedWait):
            text = f"⋯ {span(row.lasted_us / 1_000_000)} waiting, not to scale"
            steps.append(PictureStep(name="⋯", x=x, width=GAP, y=place * ROW, text=text, gap=True))
            continue
        x = round(TRACE_LABEL + row.offset_us * scale, 1)
        width = round(max(1.5, row.span.lasted_us * scale), 1)
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
    return StepPicture(
        steps=steps,
        height=ROW * len(steps),
        title=f"{work} of work in {total}{more}",
        notes=list(_notes(drawn)),
    )


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
