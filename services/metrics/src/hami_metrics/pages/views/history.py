"""The time slider: a window around a moment, its changes as a strip, the steps from there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hami_metrics.pages.domain.details import ChangeStrip

WINDOWS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
WIDTH = 1000
HEIGHT = 40
FRAMES = 60
"""Of a run through a window: one a second."""
MARGIN = 0.05
"""Of the time since the first record, left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripBar:
    """One part of the window; nothing is drawn where nothing changed."""

    x: float
    y: float
    width: float
    height: float
    at: datetime
    changes: int
    health: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Everything that the template asks for."""

    window: str
    since: datetime
    until: datetime
    bars: Sequence[StripBar]
    marker: float
    """Where the moment that is shown is in the picture."""
    steps: Sequence[tuple[str, str, datetime]]
    """(id of the link, its text, the moment), of those that lead somewhere."""
    play_from: datetime
    """Where a run through the window begins."""
    frame: datetime | None
    """The moment after this one of a run; None: it is over, or none goes on."""
    total: int
    before_record: bool
    """The moment is before anything was recorded."""
    first_record: datetime | None


def window_around(at: datetime, now: datetime, window: str) -> tuple[datetime, datetime]:
    """The moment in the middle, unless that would reach into the future."""
    length = WINDOWS[window]
    until = min(now, at + length / 2)
    return until - length, until


def since_first(
    since: datetime, until: datetime, *, at: datetime, first: datetime | None
) -> datetime:
    """Begin of the window, a little before the first record where that is within it.

    A moment before all records stays in the picture, and so does a minute at least.
    """
    if first is None or not since < first <= until or at < first:
        return since
    return max(since, min(first - (until - first) * MARGIN, until - timedelta(minutes=1)))


def history_page(
    strip: ChangeStrip, window: str, at: datetime, now: datetime, *, playing: bool = False
) -> HistoryPage:
    """Of the strip around the moment `at`; `playing`: a run through the window goes on."""
    frame = at + WINDOWS[window] / FRAMES
    span_s = (strip.until - strip.since).total_seconds()
    most = max(strip.changes, default=0)
    width = WIDTH / max(1, len(strip.changes))
    bars = []
    for place, changes in enumerate(strip.changes):
        if not changes:
            continue
        height = max(2.0, HEIGHT * changes / most)
        bars.append(
            StripBar(
                x=round(place * width, 1),
                y=round(HEIGHT - height, 1),
                width=round(max(1.0, width - 1), 1),
                height=round(height, 1),
                at=strip.since + strip.step * (place + 0.5),
                changes=changes,
                health=strip.health[place],
            )
        )
    first = strip.first_record
    return HistoryPage(
        window=window,
        since=strip.since,
        until=strip.until,
        bars=bars,
        marker=round(WIDTH * (at - strip.since).total_seconds() / span_s, 1),
        steps=_steps(strip, at, now),
        play_from=at if frame <= now else strip.since,
        frame=frame if playing and frame <= now else None,
        total=sum(strip.changes),
        before_record=first is not None and at < first,
        first_record=first,
    )


def _steps(strip: ChangeStrip, at: datetime, now: datetime) -> list[tuple[str, str, datetime]]:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    wanted: list[tuple[str, str, datetime | None]] = [
        ("previous", "◀ change before", strip.previous),
        ("next", "change after ▶", strip.following),
        ("", "- 1 h", at - hour),
        ("", "- 1 min", at - minute),
        ("", "+ 1 min", at + minute),
        ("", "+ 1 h", at + hour),
    ]
    return [(name, text, to) for name, text, to in wanted if to is not None and to <= now]
