"""Sum up card time per hour and day in Postgres: by state of the cards, and by holder.

In: the periods of cards, the gaps of nodes and the grants, through the ledger's own functions
`capacity_between` and `showback_between` (whole microseconds). Out: `capacity_rollups` and
`showback_rollups`, from which months are answered. As with the sums of namespaces
(`namespaces.py`) the last hours are replaced each time, so doing it twice (or in two replicas, one
after the other) changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hamicommon.ledger.connection import Connection

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# A node that is not heard is known to be so a little later, and a replica may have been away.
LATE = timedelta(hours=3)


class _Sums:
    """Statements on the table `<subject>_rollups`, which the function `<subject>_between` fills."""

    def __init__(self, subject: str, keys: Sequence[str], amounts: Sequence[str]) -> None:
        table, key = f"{subject}_rollups", ", ".join(keys)
        insert = f"INSERT INTO {table} (bucket_start, bucket_s, {key}, {', '.join(amounts)})"
        sums = ", ".join(f"sum({amount})" for amount in amounts)
        self.turn = f"SELECT pg_try_advisory_xact_lock(hashtext('hami {subject} rollups'))"
        # The whole first day: what came before the first period is unknown, and shown so.
        self.since = f"""
SELECT greatest(date_trunc('day', min(began_at), 'UTC'),
                (SELECT max(bucket_start) + interval '1 hour' - $1::interval
                   FROM {table} WHERE bucket_s = 3600))
  FROM device_periods
"""
        self.forget = (
            f"DELETE FROM {table} WHERE bucket_s = $1 AND bucket_start >= $2 AND bucket_start < $3"
        )
        self.hour = f"""
{insert}
SELECT $1, 3600, {key}, {sums} FROM {subject}_between($1, $2) GROUP BY {key}
"""
        self.day = f"""
{insert}
SELECT $1, 86400, {key}, {sums}
  FROM {table} WHERE bucket_s = 3600 AND bucket_start >= $1 AND bucket_start < $2
 GROUP BY {key}
"""


_CAPACITY = _Sums(
    "capacity",
    ("node", "type"),
    ("held_s", "idle_s", "cordoned_s", "unhealthy_s", "unknown_s", "absent_s"),
)
_SHOWBACK = _Sums("showback", ("type", "kind", "namespace"), ("memory_us", "core_us", "slot_us"))


async def sum_up_capacity(connection: Connection, now: datetime) -> int:
    """Sum up card time by state; see `_sum_up`."""
    return await _sum_up(connection, _CAPACITY, now)


async def sum_up_showback(connection: Connection, now: datetime) -> int:
    """Sum up card time by holder; see `_sum_up`."""
    return await _sum_up(connection, _SHOWBACK, now)


async def _sum_up(connection: Connection, sums: _Sums, now: datetime) -> int:
    """Sum up every hour that ended since the last call, and the last few hours again.

    One transaction per day, so that a first run over months holds nothing for long. Returns the
    hours that were summed up; 0 when another replica is at it.
    """
    until = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    since = await connection.fetchval(sums.since, LATE)
    if since is None:
        return 0
    start = since.astimezone(UTC)
    done = 0
    while start < until:
        midnight = start.replace(hour=0)
        end = min(midnight + DAY, until)
        async with connection.transaction():
            if not await connection.fetchval(sums.turn):
                return done
            await connection.execute(sums.forget, 3600, start, end)
            while start < end:
                await connection.execute(sums.hour, start, start + HOUR)
                start += HOUR
                done += 1
            await connection.execute(sums.forget, 86400, midnight, midnight + DAY)
            await connection.execute(sums.day, midnight, midnight + DAY)
    return done
