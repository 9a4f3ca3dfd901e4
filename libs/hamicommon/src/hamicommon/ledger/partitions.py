"""Create daily partitions some days ahead, and drop those that are too old.

A table that is partitioned by day has `<table>_YYYYMMDD` (UTC) and `<table>_default`, which gets
rows that no day covers, so that nothing is lost while no process creates partitions. Any number of
replicas may call this concurrently: one works, the others find the table locked and do nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from hamicommon.ledger.connection import Connection

AHEAD_DAYS = 3
"""Number of days after today that have a partition, enough for a long week-end's outage."""

# A drop locks the whole table: it waits this long for its turn, otherwise the next round does it.
LOCK_TIMEOUT = "200ms"

_TURN = "SELECT pg_try_advisory_xact_lock(hashtext('hami partitions'), hashtext($1))"
_CHILDREN = """
SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = $1::text::regclass ORDER BY c.relname
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChanges:
    """Days whose partitions one round created and dropped."""

    made: tuple[date, ...] = ()
    dropped: tuple[date, ...] = ()


async def days_of(connection: Connection, table: str) -> list[date]:
    """Return the days that have a partition, in order."""
    found = []
    for row in await connection.fetch(_CHILDREN, table):
        if match := re.fullmatch(rf"{table}_(\d{{4}})(\d\d)(\d\d)", row["name"]):
            found.append(date(int(match[1]), int(match[2]), int(match[3])))
    return found


async def keep_partitions(
    connection: Connection, table: str, column: str, *, today: date, keep_days: int
) -> PartitionChanges:
    """Create partitions from today up to `AHEAD_DAYS`, drop those older than `keep_days`.

    `column` is the one that the table is partitioned by. Each partition is a short transaction of
    its own. Raises: what the driver raises; a lock not granted ends the round.
    """
    there = set(await days_of(connection, table))
    wanted = [today + timedelta(days=ahead) for ahead in range(AHEAD_DAYS + 1)]
    made = [
        day for day in wanted if day not in there and await _make(connection, table, column, day)
    ]
    oldest = today - timedelta(days=keep_days)
    dropped = [day for day in sorted(there) if day < oldest and await _drop(connection, table, day)]
    await connection.execute(f"DELETE FROM {table}_default WHERE {column} < $1", _start_of(oldest))
    return PartitionChanges(made=tuple(made), dropped=tuple(dropped))


async def make_days(
    connection: Connection, table: str, column: str, days: Sequence[date]
) -> list[date]:
    """Create missing partitions of these days; return those that were created."""
    return [day for day in days if await _make(connection, table, column, day)]


async def _make(connection: Connection, table: str, column: str, day: date) -> bool:
    """Create a partition, and move the day's rows into it from the default partition."""
    name, span = f"{table}_{day:%Y%m%d}", (_start_of(day), _start_of(day + timedelta(days=1)))
    async with connection.transaction():
        if not await _turn(connection, table):
            return False
        if await connection.fetchval("SELECT to_regclass($1)", name):
            return False
        await connection.execute(
            f"CREATE TEMP TABLE strays (LIKE {table} INCLUDING DEFAULTS) ON COMMIT DROP"
        )
        await connection.execute(
            f"WITH gone AS (DELETE FROM {table}_default WHERE {column} >= $1 AND {column} < $2"
            " RETURNING *) INSERT INTO strays SELECT * FROM gone",
            *span,
        )
        await connection.execute("SELECT hami_ensure_partition($1, $2)", table, day)
        # An identity column keeps the numbers that were handed out.
        await connection.execute(
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM strays"
        )
    return True


async def _drop(connection: Connection, table: str, day: date) -> bool:
    async with connection.transaction():
        if not await _turn(connection, table):
            return False
        if not await connection.fetchval("SELECT to_regclass($1)", f"{table}_{day:%Y%m%d}"):
            return False
        await connection.execute("SELECT hami_drop_partition($1, $2)", table, day)
    return True


async def _turn(connection: Connection, table: str) -> bool:
    await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    return bool(await connection.fetchval(_TURN, table))


def _start_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
