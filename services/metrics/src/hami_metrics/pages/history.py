"""Page `/history`: the cluster at any moment, with a slider, a strip of changes, and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from hamicommon.ledger.connection import Connection

from hami_metrics.pages.cluster import PageCluster, Row, differing_cards
from hami_metrics.pages.overview import answer_with_grid
from hami_metrics.pages.site import PageRequest, Site, choice_of, text_of

WINDOWS: Mapping[str, timedelta] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
BARS = 120
WIDTH = 1000
HEIGHT = 40
FRAMES = 60
"""Number of frames of an animation through a window, one per second."""
MARGIN = 0.05
"""Fraction of the time since the first record that is shown before it."""
FARTHER = tuple(timedelta(days=days) for days in (1, 4, 16, 64, 256))
"""Distances in which a change outside the window is searched, to read little at a time."""

# The BRIN index on time serves `allocation_events`; the window bounds the rows read.
_STRIP = """
WITH changes AS (
    SELECT at, false AS health FROM allocation_events WHERE at > $1 AND at <= $2
    UNION ALL
    SELECT at, true FROM device_health_events WHERE at > $1 AND at <= $2
)
SELECT floor(extract(epoch FROM at - $1) / $4)::int AS bar, count(*) AS changes,
       count(*) FILTER (WHERE health) AS health, max(at) FILTER (WHERE at < $3) AS previous,
       min(at) FILTER (WHERE at > $3) AS following
  FROM changes GROUP BY bar ORDER BY bar
"""
_LAST_BEFORE = """
SELECT max(at) FROM (
    SELECT max(at) AS at FROM allocation_events WHERE at >= $1 AND at < $2
    UNION ALL SELECT max(at) FROM device_health_events WHERE at >= $1 AND at < $2) changes
"""
_FIRST_AFTER = """
SELECT min(at) FROM (
    SELECT min(at) AS at FROM allocation_events WHERE at > $1 AND at <= $2
    UNION ALL SELECT min(at) FROM device_health_events WHERE at > $1 AND at <= $2) changes
"""
FIRST_RECORD = "SELECT at FROM allocation_events ORDER BY id LIMIT 1"
"""Query of the first recorded change; NULL: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStrip:
    """Numbers of changes in equal parts of a window."""

    since: datetime
    until: datetime
    step: timedelta
    changes: Sequence[int]
    health: Sequence[int]
    """Numbers of health changes among them."""
    previous: datetime | None
    """Last change before the shown moment, if recorded."""
    following: datetime | None
    """First change after the shown moment."""
    first_record: datetime | None
    """Time of the first record."""


async def read_strip(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    at: datetime,
    first_record: datetime | None,
) -> ChangeStrip:
    """Read changes of grants and of health in (since, until], in `BARS` equal parts."""
    step_s = max(1.0, (until - since).total_seconds() / BARS)
    rows = await connection.fetch(_STRIP, since, until, at, step_s)
    changes, health = [0] * BARS, [0] * BARS
    for row in rows:
        place = min(BARS - 1, max(0, row["bar"]))
        changes[place] += row["changes"]
        health[place] += row["health"]
    previous = max((row["previous"] for row in rows if row["previous"]), default=None)
    following = min((row["following"] for row in rows if row["following"]), default=None)
    if previous is None:
        previous = await _find_farther(connection, _LAST_BEFORE, min(since, at), -1)
    if following is None:
        following = await _find_farther(connection, _FIRST_AFTER, max(until, at), 1)
    return ChangeStrip(
        since=since,
        until=until,
        step=timedelta(seconds=step_s),
        changes=changes,
        health=health,
        previous=previous,
        following=following,
        first_record=first_record,
    )


async def _find_farther(
    connection: Connection, statement: str, edge: datetime, sign: int
) -> datetime | None:
    """Find the change nearest to the window on one side."""
    for span in FARTHER:
        end = edge + sign * span
        found: datetime | None = await connection.fetchval(statement, *sorted((edge, end)))
        if found is not None:
            return found
        edge = end
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Values for the template."""

    window: str
    strip: ChangeStrip
    bars: Sequence[Row]
    """Parts of the window with changes, with their position in the picture."""
    marker: float
    """Position of the shown moment in the picture."""
    steps: Sequence[tuple[str, str, datetime]]
    """Links as (id, text, moment), without those that lead nowhere."""
    play_from: datetime
    """Start of an animation through the window."""
    frame: datetime | None
    """Next moment of the animation; None: it has ended, or none is playing."""
    before_record: bool
    """Whether the moment is before the first record."""


def window_around(at: datetime, now: datetime, window: str) -> tuple[datetime, datetime]:
    """Return a window with the moment in its middle, but not beyond now."""
    length = WINDOWS[window]
    until = min(now, at + length / 2)
    return until - length, until


def window_begin(
    since: datetime, until: datetime, *, at: datetime, first: datetime | None
) -> datetime:
    """Return the start of a window, shortly before the first record if that is within it.

    A moment before all records stays in the picture, and so does a minute at least.
    """
    if first is None or not since < first <= until or at < first:
        return since
    return max(since, min(first - (until - first) * MARGIN, until - timedelta(minutes=1)))


def history_page(
    strip: ChangeStrip, window: str, at: datetime, now: datetime, *, playing: bool = False
) -> HistoryPage:
    """Return the page's values for a moment; `playing`: an animation continues."""
    frame = at + WINDOWS[window] / FRAMES
    span_s = (strip.until - strip.since).total_seconds()
    highest = max(strip.changes, default=0)
    width = WIDTH / max(1, len(strip.changes))
    heights = [max(2.0, HEIGHT * changes / (highest or 1)) for changes in strip.changes]
    bars = [
        {
            "x": round(place * width, 1),
            "y": round(HEIGHT - heights[place], 1),
            "width": round(max(1.0, width - 1), 1),
            "height": round(heights[place], 1),
            "at": strip.since + strip.step * (place + 0.5),
            "changes": changes,
            "health": strip.health[place],
        }
        for place, changes in enumerate(strip.changes)
        if changes
    ]
    return HistoryPage(
        window=window,
        strip=strip,
        bars=bars,
        marker=round(WIDTH * (at - strip.since).total_seconds() / span_s, 1),
        steps=_steps(strip, at, now),
        play_from=at if frame <= now else strip.since,
        frame=frame if playing and frame <= now else None,
        before_record=strip.first_record is not None and at < strip.first_record,
    )


def _steps(strip: ChangeStrip, at: datetime, now: datetime) -> list[tuple[str, str, datetime]]:
    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    offered: list[tuple[str, str, datetime | None]] = [
        ("previous", "◀ previous change", strip.previous),
        ("next", "next change ▶", strip.following),
        ("", "- 1 h", at - hour),
        ("", "- 1 min", at - minute),
        ("", "+ 1 min", at + minute),
        ("", "+ 1 h", at + hour),
    ]
    return [(name, text, to) for name, text, to in offered if to is not None and to <= now]


def routes(site: Site) -> APIRouter:
    """Serve the page."""
    router = APIRouter()

    @router.get("/history")
    async def history(request: Request) -> Response:
        asked = await site.open_request(request)
        window = choice_of(request, "window", WINDOWS, "24h")
        at, now = asked.moment.shown, asked.moment.now
        since, until = window_around(at, now, window)
        async with site.ledger.look() as connection:
            first = await connection.fetchval(FIRST_RECORD)
            since = window_begin(since, until, at=at, first=first)
            strip = await read_strip(
                connection, since=since, until=until, at=at, first_record=first
            )
        compared = await _present(site, asked, request)
        differing: frozenset[str] = frozenset()
        new = 0
        if compared is not None and asked.state is not None:
            differing = differing_cards(asked.state, compared)
            then = {card.uuid for card in asked.state.cards()}
            new = sum(card.uuid not in then for card in compared.cards())
        return answer_with_grid(
            site,
            asked,
            request,
            "history.html",
            here="history",
            history=history_page(strip, window, at, now, playing=text_of(request, "play") == "1"),
            windows=WINDOWS,
            compared=compared is not None,
            new=new,
            differing=differing,
        )

    return router


async def _present(site: Site, asked: PageRequest, request: Request) -> PageCluster | None:
    """Return the present state to compare with; None: not requested, or unknown."""
    if text_of(request, "compare") != "1" or not asked.moment.past:
        return None
    return (await site.feed.look()).state
