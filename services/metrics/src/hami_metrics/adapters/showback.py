"""Hours and days of showback in Postgres: whose the cards' time was, in whole microseconds.

In: the periods of cards, the gaps of nodes and the grants, through the ledger's own function
`showback_between`. Out: `showback_rollups`, from which months are answered. As with the sums of
capacity (`capacity.py`) the last hours are replaced each time, so doing it twice changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hamicommon.ledger.connection import Connection

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# A node that is not heard is known to be so a little later, and a replica may have been away.
LATE = timedelta(hours=3)

_TURN = "SELECT pg_try_advisory_xact_lock(hashtext('hami showback rollups'))"
_SINCE = """
SELECT greatest(date_trunc('day', min(began_at), 'UTC'),
                (SELECT max(bucket_start) + interval '1 hour' - $1::interval
                   FROM showback_rollups WHERE bucket_s = 3600))
  FROM device_periods
"""
_FORGET = (
    "DELETE FROM showback_rollups WHERE bucket_s = $1 AND bucket_start >= $2 AND bucket_start < $3"
)
_HOUR = """
INSERT INTO showback_rollups (bucket_start, bucket_s, type, kind, namespace, memory_us, core_us,
                              slot_us)
SELECT $1, 3600, type, kind, namespace, memory_us, core_us, slot_us
  FROM showback_between($1, $2)
"""
_DAY = """
INSERT INTO showback_rollups (bucket_start, bucket_s, type, kind, namespace, memory_us, core_us,
                              slot_us)
SELECT $1, 86400, type, kind, namespace, sum(memory_us), sum(core_us), sum(slot_us)
  FROM showback_rollups WHERE bucket_s = 3600 AND bucket_start >= $1 AND bucket_start < $2
 GROUP BY type, kind, namespace
"""


async def sum_up_showback(connection: Connection, now: datetime) -> int:
    """Sums up every hour that ended since the last time, and the last few again.

    One transaction per day, so that a first run over months holds nothing for long. Returns the
    hours that were summed up; 0 when another replica is at it.
    """
    until = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    since = await connection.fetchval(_SINCE, LATE)
    if since is None:
        return 0
    start = since.astimezone(UTC)
    done = 0
    while start < until:
        midnight = start.replace(hour=0)
        end = min(midnight + DAY, until)
        async with connection.transaction():
            if not await connection.fetchval(_TURN):
                return done
            await connection.execute(_FORGET, 3600, start, end)
            while start < end:
                await connection.execute(_HOUR, start, start + HOUR)
                start += HOUR
                done += 1
            await connection.execute(_FORGET, 86400, midnight, midnight + DAY)
            await connection.execute(_DAY, midnight, midnight + DAY)
    return done
