"""Small writes in Postgres: drift journal, calls of operators, the end of history.

Old history leaves in small batches, each a transaction of its own. Grants go by
`hami_forget_grants` (migration 0017), which alone may remove events; the rest is this service's to
delete. No batch waits for a lock longer than `LOCK_TIMEOUT`: the next round does it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hamicommon.clipping import clip
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.ports.ledger import CallOutcome, OperatorCall

INSERT_DRIFT = (
    'INSERT INTO drift_journal ("class", subject, detail, repaired) VALUES ($1, $2, $3, $4)'
)
MAX_SUBJECT = 512
MAX_DETAIL = 4096
"""Characters: tenants choose annotations and names, and the journal is kept for months."""
_CALL_BEGINS = """
INSERT INTO operator_calls (username, groups, source, address, verb, object, outcome)
VALUES ($1, $2, $3, $4, $5, $6, 'begun') RETURNING id
"""
_CALL_ENDS = """
UPDATE operator_calls SET outcome = $2, message = $3, ended_at = now()
 WHERE id = $1 AND outcome = 'begun' RETURNING id
"""
# Who may not call can call all the more often.
_CALL_REFUSED = """
WITH known AS (
  UPDATE operator_calls SET repeat_count = repeat_count + 1, ended_at = now()
   WHERE id = (SELECT id FROM operator_calls
                WHERE at > now() - interval '1 hour' AND outcome = 'refused' AND username = $1
                  AND verb = $5 AND message = $7 ORDER BY at DESC, id DESC LIMIT 1)
  RETURNING id
)
INSERT INTO operator_calls (username, groups, source, address, verb, object, outcome, message,
                            ended_at)
SELECT $1, $2, $3, $4, $5, $6, 'refused', $7, now() WHERE NOT EXISTS (SELECT FROM known)
"""
LOCK_TIMEOUT = "200ms"
BATCH = 500
"""Pods or rows of a transaction; half a second of work on a slow disk."""


def _delete(table: str, old: str, *, key: str = "id", order: str = "at") -> str:
    """Return the statement that deletes a batch of what is `old`."""
    return f"""
DELETE FROM {table}
 WHERE ({key}) IN (SELECT {key} FROM {table} t WHERE {old} ORDER BY {order} LIMIT $2)
RETURNING *
"""


_FORGET = {
    "drift": [
        _delete("drift_journal", "at < $1"),
        _delete("scale_wishes", "ended_at < $1", order="ended_at"),
    ],
    # The newest event of a card stays: it has the state that the card is in.
    "health": [
        _delete(
            "device_health_events",
            """at < $1 AND EXISTS (SELECT FROM device_health_events later
                                    WHERE later.device_uuid = t.device_uuid
                                      AND (later.at, later.id) > (t.at, t.id))""",
        )
    ],
    # Periods in which containers were beyond their grants, and that ended before then.
    "limits": [_delete("limit_periods", "ended_at < $1", order="began_at")],
    "calls": [_delete("operator_calls", "at < $1")],
    "capacity": [
        _delete("device_periods", "ended_at < $1", order="ended_at"),
        _delete("node_gaps", "ended_at < $1", key="node, began_at", order="ended_at"),
        _delete("quota_periods", "ended_at < $1", order="ended_at"),
    ],
}
# Pods all of whose grants ended before then, with all that belongs to these.
_OLD_GRANTS = "SELECT hami_forget_grants($1, $2)"
# What a card was before its oldest period is not known any more.
_OLDEST_PERIODS = """
UPDATE device_periods p SET since_known = false
 WHERE device_uuid = ANY ($1) AND since_known
   AND NOT EXISTS (SELECT FROM device_periods before
                    WHERE before.device_uuid = p.device_uuid AND before.began_at < p.began_at)
"""
# A card that any grant names stays as long as the grant.
_OLD_CARDS = """
SELECT uuid FROM devices d
 WHERE NOT present AND updated_at < $1 AND used_slots = 0 AND used_memory_mib = 0
   AND used_core_percent = 0 AND holdings = '{}'::jsonb
   AND NOT EXISTS (SELECT FROM allocation_devices x WHERE x.device_uuid = d.uuid)
 ORDER BY uuid LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_THEIR_HEALTH = "DELETE FROM device_health_events WHERE device_uuid = ANY ($1)"
_DELETE_CARDS = "DELETE FROM devices WHERE uuid = ANY ($1)"


def drift_line(kind: str, subject: str, detail: str, *, repaired: bool) -> tuple[object, ...]:
    """Return the parameters of `INSERT_DRIFT`, clipped."""
    return kind, clip(subject, MAX_SUBJECT), clip(detail, MAX_DETAIL), repaired


class PostgresJournal:
    """The drift journal in Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Append one line, clipped. Raises: Unavailable."""
        await self._database.fetch(
            INSERT_DRIFT, *drift_line(kind, subject, detail, repaired=repaired)
        )


class PostgresCallJournal:
    """Operators' calls; a trigger lets nobody change or remove one (migration 0020)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, call: OperatorCall) -> int:
        """Write the call as begun; return its number."""
        row = await self._database.fetchrow(_CALL_BEGINS, *_call_columns(call))
        return int(row["id"])

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """Write the call's outcome."""
        await self._database.fetchrow(_CALL_ENDS, number, outcome.value, message)

    async def refused(self, call: OperatorCall, message: str) -> None:
        """Write a refused call; identical ones within an hour only raise the count of one row."""
        await self._database.fetch(_CALL_REFUSED, *_call_columns(call), message)


def _call_columns(call: OperatorCall) -> tuple[object, ...]:
    source = "token" if call.user else "open"
    return call.user or None, list(call.groups), source, call.address, call.verb, call.object


class PostgresRetention:
    """Retention of history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget(self, kind: str, *, keep_days: int) -> int:
        """Remove one batch of what is older than `keep_days`; return how much (0: all is gone).

        Raises: Conflict (a lock was not to be had), Unavailable.
        """
        about = (datetime.now(UTC) - timedelta(days=keep_days), BATCH)
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            if kind == "grants":
                return int(await connection.fetchval(_OLD_GRANTS, *about))
            if kind == "cards":
                return await _forget_cards(connection, *about)
            gone = [await connection.fetch(statement, *about) for statement in _FORGET[kind]]
            if kind == "capacity":
                cards = [row["device_uuid"] for row in gone[0]]
                await connection.execute(_OLDEST_PERIODS, cards)
            return sum(map(len, gone))


async def _forget_cards(connection: Connection, before: datetime, most: int) -> int:
    """Cards that have been absent since, and that no grant names."""
    uuids = [row["uuid"] for row in await connection.fetch(_OLD_CARDS, before, most)]
    await connection.execute(_THEIR_HEALTH, uuids)
    await connection.execute(_DELETE_CARDS, uuids)
    return len(uuids)
