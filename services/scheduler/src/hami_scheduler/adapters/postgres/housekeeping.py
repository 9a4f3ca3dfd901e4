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

_DRIFT = 'INSERT INTO drift_journal ("class", subject, detail, repaired) VALUES ($1, $2, $3, $4)'
MOST_OF_A_SUBJECT = 512
MOST_OF_A_DETAIL = 4096
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

_OLD_DRIFT = """
WITH gone AS (
    DELETE FROM drift_journal
     WHERE id IN (SELECT id FROM drift_journal WHERE at < $1 ORDER BY at LIMIT $2) RETURNING id)
SELECT count(*) FROM gone
"""
# The newest event of a card stays: it has the state that the card is in.
_OLD_HEALTH = """
WITH gone AS (
    DELETE FROM device_health_events
     WHERE id IN (SELECT e.id FROM device_health_events e
                   WHERE e.at < $1
                     AND EXISTS (SELECT FROM device_health_events later
                                  WHERE later.device_uuid = e.device_uuid
                                    AND (later.at, later.id) > (e.at, e.id))
                   LIMIT $2) RETURNING id)
SELECT count(*) FROM gone
"""
_OLD_LIMITS = """
WITH gone AS (
    DELETE FROM limit_periods
     WHERE id IN (SELECT id FROM limit_periods WHERE ended_at < $1 ORDER BY began_at LIMIT $2)
    RETURNING id)
SELECT count(*) FROM gone
"""
_OLD_CALLS = """
WITH gone AS (
    DELETE FROM operator_calls
     WHERE id IN (SELECT id FROM operator_calls WHERE at < $1 ORDER BY at LIMIT $2) RETURNING id)
SELECT count(*) FROM gone
"""
_FORGET = {
    # Pods all of whose grants ended before then, with all that belongs to these.
    "grants": "SELECT hami_forget_grants($1, $2)",
    "drift": _OLD_DRIFT,
    "health": _OLD_HEALTH,
    # Periods in which containers were beyond their grants, and that ended before then.
    "limits": _OLD_LIMITS,
    "calls": _OLD_CALLS,
}
_OLD_PERIODS = """
DELETE FROM device_periods
 WHERE id IN (SELECT id FROM device_periods WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)
RETURNING device_uuid
"""
# What a card was before its oldest period is not known any more.
_OLDEST_PERIODS = """
UPDATE device_periods p SET since_known = false
 WHERE device_uuid = ANY ($1) AND since_known
   AND NOT EXISTS (SELECT FROM device_periods before
                    WHERE before.device_uuid = p.device_uuid AND before.began_at < p.began_at)
"""
_OLD_GAPS = """
DELETE FROM node_gaps WHERE (node, began_at) IN
       (SELECT node, began_at FROM node_gaps WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)
RETURNING node
"""
_OLD_QUOTAS = """
DELETE FROM quota_periods
 WHERE id IN (SELECT id FROM quota_periods WHERE ended_at < $1 ORDER BY ended_at LIMIT $2)
RETURNING id
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


class PostgresJournal:
    """Where the reconciler writes what it found."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def drift(self, kind: str, subject: str, detail: str, *, repaired: bool) -> None:
        """Appends one line, clipped. Raises: Unavailable."""
        subject, detail = clip(subject, MOST_OF_A_SUBJECT), clip(detail, MOST_OF_A_DETAIL)
        await self._database.fetch(_DRIFT, kind, subject, detail, repaired)


class PostgresCallJournal:
    """Operators' calls; a trigger lets nobody change or remove one (migration 0020)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, call: OperatorCall) -> int:
        """Writes the call as begun; returns its number."""
        row = await self._database.fetchrow(_CALL_BEGINS, *_call_columns(call))
        return int(row["id"])

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """Writes what became of it."""
        await self._database.fetchrow(_CALL_ENDS, number, outcome.value, message)

    async def refused(self, call: OperatorCall, message: str) -> None:
        """Writes that the caller may not; an identical one of the hour is counted on its row."""
        await self._database.fetch(_CALL_REFUSED, *_call_columns(call), message)


def _call_columns(call: OperatorCall) -> tuple[object, ...]:
    caller = call.caller
    # Nobody was asked who calls, or the certificate has no name: unknown.
    user = caller.user or None
    return user, list(caller.groups), caller.source.value, call.address, call.verb, call.object


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
            if kind == "capacity":
                return await _forget_capacity(connection, *about)
            if kind == "cards":
                return await _forget_cards(connection, *about)
            return int(await connection.fetchval(_FORGET[kind], *about))


async def _forget_capacity(connection: Connection, before: datetime, most: int) -> int:
    """Periods of cards and quotas that ended, and gaps of nodes."""
    cards = await connection.fetch(_OLD_PERIODS, before, most)
    await connection.execute(_OLDEST_PERIODS, [row["device_uuid"] for row in cards])
    gaps = await connection.fetch(_OLD_GAPS, before, most)
    quotas = await connection.fetch(_OLD_QUOTAS, before, most)
    return len(cards) + len(gaps) + len(quotas)


async def _forget_cards(connection: Connection, before: datetime, most: int) -> int:
    """Cards that have been absent since, and that no grant names."""
    uuids = [row["uuid"] for row in await connection.fetch(_OLD_CARDS, before, most)]
    await connection.execute(_THEIR_HEALTH, uuids)
    await connection.execute(_DELETE_CARDS, uuids)
    return len(uuids)
