"""How much changed when: the strip under the time slider, and the changes next to a moment."""

from __future__ import annotations

from datetime import datetime, timedelta

from hamicommon.ledger.connection import Connection

from hami_metrics.pages.domain.details import ChangeStrip

BARS = 120

# Both tables are read through the summary of times; the window bounds what is read.
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
FARTHER = tuple(timedelta(days=days) for days in (1, 4, 16, 64, 256))
"""Beyond the window a change is looked for in steps: each reads little where much is stored."""
_FIRST = "SELECT at FROM allocation_events ORDER BY id LIMIT 1"


async def read_first(connection: Connection) -> datetime | None:
    """The first change that is kept; None: nothing changed yet."""
    first: datetime | None = await connection.fetchval(_FIRST)
    return first


async def read_strip(
    connection: Connection, *, since: datetime, until: datetime, at: datetime
) -> ChangeStrip:
    """Changes of grants and of health in (since, until], in `BARS` equal parts."""
    step_s = max(1.0, (until - since).total_seconds() / BARS)
    rows = await connection.fetch(_STRIP, since, until, at, step_s)
    bars = [0] * BARS
    health = [0] * BARS
    for row in rows:
        place = min(BARS - 1, max(0, row["bar"]))
        bars[place] += row["changes"]
        health[place] += row["health"]
    previous = max((row["previous"] for row in rows if row["previous"]), default=None)
    following = min((row["following"] for row in rows if row["following"]), default=None)
    if previous is None:
        previous = await _farther(connection, _LAST_BEFORE, min(since, at), -1)
    if following is None:
        following = await _farther(connection, _FIRST_AFTER, max(until, at), 1)
    return ChangeStrip(
        since=since,
        until=until,
        step=timedelta(seconds=step_s),
        changes=bars,
        health=health,
        previous=previous,
        following=following,
        first_record=await read_first(connection),
    )


async def _farther(
    connection: Connection, statement: str, edge: datetime, sign: int
) -> datetime | None:
    """The change that is next to the window on one side."""
    for span in FARTHER:
        end = edge + sign * span
        found: datetime | None = await connection.fetchval(statement, *sorted((edge, end)))
        if found is not None:
            return found
        edge = end
    return None
