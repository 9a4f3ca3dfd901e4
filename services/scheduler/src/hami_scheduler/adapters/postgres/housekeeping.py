"""Journals of drift, exceeded limits and operators' calls in Postgres, and their removal.

Limits are the findings of nodes, as periods, and which replica may evict a pod now. Old history is
deleted in small batches, each in its own transaction. Grants are removed by `hami_forget_grants`
(migration 0017), which is the only function that may remove events; this service deletes the rest.
No batch waits longer than `LOCK_TIMEOUT` for a lock: the next round does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from hamicommon.clipping import clip
from hamicommon.domain.granted_cards import LimitState
from hamicommon.events import LimitCheck, LimitFinding
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.enforcement.periods import LimitPeriod, PeriodChanges, changes, drift_class
from hami_scheduler.ports.ledger import CallOutcome, OperatorCall

INSERT_DRIFT = (
    'INSERT INTO drift_journal ("class", subject, detail, repaired) VALUES ($1, $2, $3, $4)'
)
MAX_SUBJECT = 512
MAX_DETAIL = 4096
"""Maximum characters of a detail, as tenants choose annotations and names."""
_CALL_BEGINS = """
INSERT INTO operator_calls (username, groups, source, address, verb, object, outcome)
VALUES ($1, $2, $3, $4, $5, $6, 'begun') RETURNING id
"""
_CALL_ENDS = """
UPDATE operator_calls SET outcome = $2, message = $3, ended_at = now()
 WHERE id = $1 AND outcome = 'begun' RETURNING id
"""
# A refused caller may repeat its call often.
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
"""Number of pods or rows per transaction: half a second of work on a slow disk."""


def _delete(table: str, old: str, *, key: str = "id", order: str = "at") -> str:
    """Return the statement that deletes a batch of rows that are `old`."""
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
    """Journal of operators' calls, which a trigger makes append-only (migration 0021)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, call: OperatorCall) -> int:
        """Record the beginning of a call; return its number."""
        row = await self._database.fetchrow(_CALL_BEGINS, *_call_columns(call))
        return int(row["id"])

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """Record the outcome of a call."""
        await self._database.fetchrow(_CALL_ENDS, number, outcome.value, message)

    async def record_refusal(self, call: OperatorCall, message: str) -> None:
        """Record a refused call; identical ones within an hour count in one row."""
        await self._database.fetch(_CALL_REFUSED, *_call_columns(call), message)


def _call_columns(call: OperatorCall) -> tuple[object, ...]:
    source = "token" if call.user else "open"
    return call.user or None, list(call.groups), source, call.address, call.verb, call.object


class PostgresRetention:
    """Removal of old history."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def forget(self, kind: str, *, keep_days: int) -> int:
        """Remove one batch older than `keep_days`; return its size (0: nothing is left).

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
    """Remove cards that have been absent since `before` and that no grant names."""
    uuids = [row["uuid"] for row in await connection.fetch(_OLD_CARDS, before, most)]
    await connection.execute(_THEIR_HEALTH, uuids)
    await connection.execute(_DELETE_CARDS, uuids)
    return len(uuids)


FOLD_S = 60
"""Time within which a repeated violation continues its period, so that flapping fills no table."""
# Two runs of an agent are ordered by when the bus took their reports, never by the node's clock.
# A check that is old or of a time to come hides no later one, whatever its number is.
_CHECKED = """
INSERT INTO limit_checks AS c (node, agent_id, sequence, checked_at, containers)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (node) DO UPDATE SET agent_id = excluded.agent_id, sequence = excluded.sequence,
       checked_at = excluded.checked_at, containers = excluded.containers
 WHERE (c.agent_id = excluded.agent_id AND c.sequence < excluded.sequence)
    OR (c.agent_id <> excluded.agent_id AND c.checked_at <= excluded.checked_at)
    OR c.checked_at NOT BETWEEN excluded.checked_at - interval '3 minutes'
                            AND now() + interval '5 seconds'
RETURNING node
"""
_OPEN = "SELECT * FROM limit_periods WHERE node = $1 AND ended_at IS NULL FOR UPDATE"
_REOPEN = f"""
UPDATE limit_periods SET ended_at = NULL, seen_at = $6, held_mib = $7,
       peak_mib = greatest(peak_mib, $8), granted_mib = $9, reason = $10
 WHERE id = (SELECT id FROM limit_periods
              WHERE node = $1 AND pod_uid = $2 AND container = $3 AND device_uuid = $4
                AND state = $5 AND ended_at > now() - interval '{FOLD_S} seconds'
              ORDER BY ended_at DESC LIMIT 1)
RETURNING id
"""
_BEGIN = """
INSERT INTO limit_periods (node, pod_uid, container, device_uuid, state, seen_at, held_mib,
                           peak_mib, granted_mib, reason, namespace, pod_name, began_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
"""
_GO_ON = """
UPDATE limit_periods SET seen_at = $2, held_mib = $3, peak_mib = $4, granted_mib = $5, reason = $6
 WHERE id = $1
"""
_END = "UPDATE limit_periods SET ended_at = $2 WHERE id = $1"
_TURN = "SELECT pg_advisory_xact_lock(hashtext('hami limit evictions'))"
_CLAIM = """
UPDATE limit_periods SET evicting_at = now()
 WHERE id = $1 AND ended_at IS NULL AND evicted_at IS NULL
   AND (evicting_at IS NULL OR evicting_at < now() - make_interval(secs => $2))
   AND (SELECT count(*) FROM limit_periods WHERE evicting_at > now() - interval '1 minute') < $3
RETURNING id
"""
_NOTE = """
UPDATE limit_periods SET eviction_problem = $2,
       evicted_at = CASE WHEN $2 = '' THEN now() ELSE evicted_at END
 WHERE id = $1
"""
_CLOSE_SILENT = """
UPDATE limit_periods SET ended_at = greatest(seen_at, began_at)
 WHERE ended_at IS NULL AND seen_at < now() - make_interval(secs => $1)
RETURNING id
"""
MAX_MIB = 2**31 - 1


class PostgresLimits:
    """History of exceeded limits."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self, check: LimitCheck, findings: Sequence[LimitFinding], *, received_at: datetime
    ) -> PeriodChanges | None:
        """Record a check, with a line of drift for each violation that begins.

        Returns `enforcement.periods.PeriodChanges`, or None when a later check is known.
        """
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            later = await connection.fetchval(
                _CHECKED, check.node, check.agent_id, check.sequence, received_at, check.containers
            )
            if later is None:
                return None
            known = [_period(row) for row in await connection.fetch(_OPEN, check.node)]
            changed = changes(known, check, findings, received_at=received_at)
            for period, at in changed.over:
                await connection.execute(_END, period.id, at)
            for period in changed.going_on:
                values = (received_at, *_amounts(period), period.reason)
                await connection.execute(_GO_ON, period.id, *values)
            begun = [p for p in changed.begun if await _begin(connection, p, received_at)]
        return PeriodChanges(begun=tuple(begun), going_on=changed.going_on, over=changed.over)

    async def claim_eviction(
        self, period_id: int, *, per_minute: int, again_after_s: float
    ) -> bool:
        """Return whether this replica may evict the period's pod now, and claim it.

        It may if none has tried recently, and fewer than `per_minute` tried in the last minute.
        """
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            # One at a time: otherwise two replicas would not count each other's.
            await connection.execute(_TURN)
            found = await connection.fetchval(_CLAIM, period_id, again_after_s, per_minute)
        return found is not None

    async def note_eviction(self, period_id: int, *, problem: str) -> None:
        """Record the result of an eviction; empty `problem`: the API server accepted it."""
        await self._database.fetch(_NOTE, period_id, problem)

    async def close_silent(self, *, silent_s: float) -> int:
        """End open periods that no check has confirmed for this long, at the last confirmation."""
        return len(await self._database.fetch(_CLOSE_SILENT, silent_s))


async def _begin(connection: Connection, period: LimitPeriod, received_at: datetime) -> bool:
    """Begin a period; return False if it continues one that just ended."""
    values = (
        *(period.node, period.pod_uid, period.container, period.device_uuid, str(period.state)),
        *(received_at, *_amounts(period), period.reason),
    )
    if await connection.fetchval(_REOPEN, *values) is not None:
        return False
    await connection.execute(_BEGIN, *values, period.namespace, period.pod_name, period.began_at)
    if period.state.violates:
        kind = drift_class(period.state)
        line = drift_line(kind, period.subject, period.sentence, repaired=False)
        await connection.execute(INSERT_DRIFT, *line)
    return True


def _amounts(period: LimitPeriod) -> list[int | None]:
    """Return the held, peak and granted MiB, limited to the columns' type."""
    amounts = (period.held_mib, period.peak_mib, period.granted_mib)
    return [None if each is None else min(each, MAX_MIB) for each in amounts]


def _period(row: Any) -> LimitPeriod:
    known = {each.name: row[each.name] for each in fields(LimitPeriod)}
    return LimitPeriod(**{**known, "state": LimitState(row["state"])})
