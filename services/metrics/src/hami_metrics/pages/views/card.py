"""One card: who held it when, its health, and what was used of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hami_metrics.pages.domain.cluster import PageCard
from hami_metrics.pages.domain.details import CardCounts, HealthEvent, HeldPeriod, UsePoint
from hami_metrics.pages.views.elements.charts import UseChart, cores, memory_gib, use_chart
from hami_metrics.pages.views.elements.viewer import PageViewer
from hami_metrics.pages.views.node import CardLine

WIDTH = 1000
"""Of the picture, in its own units; the page scales it."""
LANE = 18
MARGIN = 0.02
"""Of the picture's time: what is left empty before the first holder."""
LANES_SHOWN = 40
"""more lines are too thin to read; the table has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One holder's time in the picture."""

    x: float
    width: float
    y: int
    open: bool
    """It holds the card still."""
    label: str
    period: HeldPeriod


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A time in which the card was sick."""

    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The picture: holders by time, with the card's sickness below."""

    since: datetime
    until: datetime
    bars: Sequence[Bar]
    bands: Sequence[Band]
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPage:
    """Everything that the template asks for."""

    uuid: str
    node: str
    index: int
    card: PageCard | None
    """None: it is not there (any more)."""
    line: CardLine | None
    counts: CardCounts
    held: Sequence[HeldPeriod]
    lanes: Lanes
    health: Sequence[HealthEvent]
    charts: Sequence[UseChart]
    previous_change: datetime | None
    next_change: datetime | None


def lanes(
    held: Sequence[HeldPeriod],
    health: Sequence[HealthEvent],
    viewer: PageViewer,
    *,
    since: datetime,
    until: datetime,
) -> Lanes:
    """A lane is used again when its last holder is gone, so few lanes show many holders."""
    scale = WIDTH / max(1.0, (until - since).total_seconds())
    ends: list[datetime] = []
    bars = []
    for one in sorted(held, key=lambda period: (period.began_at, period.allocation_id)):
        end = one.ended_at or until
        if end <= since or one.began_at > until:
            continue
        lane = next((n for n, last in enumerate(ends) if last <= one.began_at), len(ends))
        if lane >= LANES_SHOWN:
            continue
        ends[lane : lane + 1] = [end]
        x = max(0.0, (one.began_at - since).total_seconds() * scale)
        right = min(float(WIDTH), (end - since).total_seconds() * scale)
        bars.append(
            Bar(
                x=round(x, 1),
                width=round(max(2.0, right - x), 1),
                y=lane * LANE,
                open=one.ended_at is None,
                label=viewer.pod(one.namespace, one.pod_name),
                period=one,
            )
        )
    height = LANE * max(1, len(ends))
    return Lanes(
        since=since, until=until, bars=bars, bands=_bands(health, since, until), height=height
    )


def pictured_since(held: Sequence[HeldPeriod], since: datetime, until: datetime) -> datetime:
    """Where the picture begins: a little before the first holder, if the time before is empty."""
    first = min((one.began_at for one in held), default=since)
    return max(since, first - (until - first) * MARGIN)


def _bands(health: Sequence[HealthEvent], since: datetime, until: datetime) -> list[Band]:
    scale = WIDTH / max(1.0, (until - since).total_seconds())
    bands = []
    sick: HealthEvent | None = None
    for event in [*sorted(health, key=lambda one: one.at), None]:
        if sick is not None and (event is None or event.healthy):
            end = until if event is None else event.at
            x = max(0.0, (sick.at - since).total_seconds() * scale)
            right = min(float(WIDTH), (end - since).total_seconds() * scale)
            if right > 0 and x < WIDTH:
                bands.append(
                    Band(x=round(x, 1), width=round(max(2.0, right - x), 1), label=sick.reason)
                )
            sick = None
        if event is not None and not event.healthy and sick is None:
            sick = event
    return bands


def changes(held: Sequence[HeldPeriod], health: Sequence[HealthEvent]) -> list[datetime]:
    """Moments at which something of the card changed, in order."""
    moments = {one.began_at for one in held} | {event.at for event in health}
    moments |= {one.ended_at for one in held if one.ended_at is not None}
    return sorted(moments)


def neighbours(
    moments: Sequence[datetime], at: datetime
) -> tuple[datetime | None, datetime | None]:
    """The change before and the one after a moment."""
    # A link has microseconds; what is equal to the moment is the change that is shown.
    step = timedelta(microseconds=1)
    before = next((one for one in reversed(moments) if one <= at - step), None)
    after = next((one for one in moments if one >= at + step), None)
    return before, after


def card_charts(uuid: str, series: Sequence[UsePoint]) -> list[UseChart]:
    """Memory and cores of the card itself."""
    names = {uuid: "used"}
    return [
        use_chart("memory used", "GiB", series, names, memory_gib),
        use_chart("cores used", "%", series, names, cores),
    ]
