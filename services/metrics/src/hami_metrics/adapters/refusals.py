"""Store refusals at admission in Postgres, repeated ones in one row, so that space is bounded.

Identical refusals of an hour are one row. A user has at most `MAX_ROWS` rows in a namespace and
hour, all users together `MAX_ROWS_OF_ALL`; what comes beyond is counted by the user's newest row
there, or by the row of user ''. So an attacker fills at most some 30 MiB a day, and is seen by his
counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import asyncpg

from hami_metrics.adapters.postgres import connection
from hami_metrics.refusals import AdmissionRefusal

MAX_ROWS = 60
MAX_ROWS_OF_ALL = 1000
REVIEWS_KEPT = 64
"""Maximum number of reviews recorded in a row, by which repeated deliveries are recognised.

A review that is delivered again after more equal ones than this counts twice.
"""
WINDOW = timedelta(hours=1)
DELETE_BATCH = 500

# One after the other, so that two replicas neither make two rows nor pass the bounds.
_TURN = "SELECT pg_advisory_xact_lock(hashtext('hami refusals'))"
_COUNTED = """
SELECT EXISTS (
    SELECT FROM admission_refusals
     WHERE (username, namespace) IN (($1, $2), ('', '')) AND at > $3 AND at <= $4
       AND hashtextextended($5, 0) = ANY (reviews))
"""
_COUNT_ON = f"""
UPDATE admission_refusals
   SET {{counter}} = {{counter}} + 1, last_at = greatest(last_at, $2),
       reviews = (reviews || hashtextextended($3, 0))
                     [greatest(1, cardinality(reviews) + 2 - {REVIEWS_KEPT}):]
 WHERE id = $1
"""
_SAME = """
SELECT id FROM admission_refusals
 WHERE username = $1 AND namespace = $2 AND at > $3 AND at <= $4 AND pod_name = $5
   AND owner_kind = $6 AND owner_name = $7 AND service_account = $8 AND operation = $9
   AND reason = $10 AND message = $11
 ORDER BY at DESC, id DESC LIMIT 1
"""
_NEWEST = """
SELECT max(id) AS id, count(*) AS rows FROM admission_refusals
 WHERE username = $1 AND namespace = $2 AND at > $3 AND at <= $4
"""
_OF_ALL = "SELECT count(*) FROM admission_refusals WHERE at > $1 AND at <= $2"
_INSERT = """
INSERT INTO admission_refusals (at, last_at, username, groups, namespace, pod_name, owner_kind,
                                owner_name, service_account, operation, reason, message, reviews)
VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, ARRAY[hashtextextended($12, 0)])
"""
_INSERT_OTHERS = """
INSERT INTO admission_refusals (at, last_at, username, namespace, pod_name, operation, reason,
                                message, repeat_count, other_count, reviews)
VALUES ($1, $1, '', '', '', '', 'not-kept', $2, 0, 1, ARRAY[hashtextextended($3, 0)])
"""
OTHERS = f"more than {MAX_ROWS_OF_ALL} different refusals within an hour; these were only counted"
_FORGET = """
DELETE FROM admission_refusals
 WHERE id IN (SELECT id FROM admission_refusals WHERE at < $1 ORDER BY at LIMIT $2)
"""


class PostgresRefusalStore:
    """Store of refusals (`refusals.RefusalStore`) in the table admission_refusals."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def write(self, refusal: AdmissionRefusal) -> bool:
        """Store a refusal; return False if it was stored before."""
        async with connection(self._pool) as conn, conn.transaction():
            await conn.execute(_TURN)
            return await _write(conn, refusal)

    async def forget(self, before: datetime) -> int:
        """Delete refusals before a time; return the number of rows."""
        gone = 0
        async with connection(self._pool) as conn:
            while True:
                status = await conn.execute(_FORGET, before, DELETE_BATCH)
                removed = int(status.rpartition(" ")[2])
                gone += removed
                if removed < DELETE_BATCH:
                    return gone


async def _write(conn: Any, refusal: AdmissionRefusal) -> bool:
    since, until = refusal.at - WINDOW, refusal.at + WINDOW
    who = (refusal.username, refusal.namespace, since, until)
    if await conn.fetchval(_COUNTED, *who, refusal.review_uid):
        return False
    about = (
        refusal.pod_name,
        refusal.owner_kind,
        refusal.owner_name,
        refusal.service_account,
        refusal.operation,
        refusal.reason,
        refusal.message,
    )
    same = await conn.fetchval(_SAME, *who, *about)
    if same is not None:
        await _count_on(conn, "repeat_count", same, refusal)
        return True
    own = await conn.fetchrow(_NEWEST, *who)
    if own["rows"] < MAX_ROWS and await conn.fetchval(_OF_ALL, since, until) < MAX_ROWS_OF_ALL:
        await conn.execute(
            _INSERT,
            refusal.at,
            refusal.username,
            list(refusal.groups),
            refusal.namespace,
            *about,
            refusal.review_uid,
        )
        return True
    others = own["id"] or (await conn.fetchrow(_NEWEST, "", "", since, until))["id"]
    if others is not None:
        await _count_on(conn, "other_count", others, refusal)
    else:
        await conn.execute(_INSERT_OTHERS, refusal.at, OTHERS, refusal.review_uid)
    return True


async def _count_on(conn: Any, counter: str, row: int, refusal: AdmissionRefusal) -> None:
    statement = _COUNT_ON.format(counter=counter)
    await conn.execute(statement, row, refusal.at, refusal.review_uid)
