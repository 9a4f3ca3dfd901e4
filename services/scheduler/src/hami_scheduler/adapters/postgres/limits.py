"""Limits in Postgres: what nodes found, as periods; who may end a pod now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from hamicommon.domain.granted_cards import LimitState
from hamicommon.events import LimitCheck, LimitFinding
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database

from hami_scheduler.adapters.postgres.housekeeping import INSERT_DRIFT, drift_line
from hami_scheduler.enforcement.periods import LimitPeriod, PeriodChanges, changes, drift_class

LOCK_TIMEOUT = "200ms"
FOLD_S = 60
"""A period that comes again so soon after its end continues: who flaps fills no table."""
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
    """History of limits in Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self, check: LimitCheck, findings: Sequence[LimitFinding], *, received_at: datetime
    ) -> PeriodChanges | None:
        """Write a check down, with a line of drift for each violation that begins.

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
                await connection.execute(
                    _GO_ON,
                    period.id,
                    received_at,
                    _mib(period.held_mib),
                    _mib(period.peak_mib),
                    _mib(period.granted_mib),
                    period.reason,
                )
            begun = [p for p in changed.begun if await _begin(connection, p, received_at)]
        return PeriodChanges(begun=tuple(begun), going_on=changed.going_on, over=changed.over)

    async def claim_eviction(
        self, period_id: int, *, per_minute: int, again_after_s: float
    ) -> bool:
        """Whether this replica may end the period's pod now.

        Nobody else has tried recently, and not so many were ended in the last minute.
        """
        async with self._database.transaction() as connection:
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            # One at a time, or two replicas would each count without the other's.
            await connection.execute(_TURN)
            found = await connection.fetchval(_CLAIM, period_id, again_after_s, per_minute)
        return found is not None

    async def note_eviction(self, period_id: int, *, problem: str) -> None:
        """Write an eviction's result; an empty `problem`: the API server accepted it."""
        await self._database.fetch(_NOTE, period_id, problem)

    async def close_silent(self, *, silent_s: float) -> int:
        """End open periods that no check has confirmed for so long, when they were last seen."""
        return len(await self._database.fetch(_CLOSE_SILENT, silent_s))


async def _begin(connection: Connection, period: LimitPeriod, received_at: datetime) -> bool:
    """Begin a period; False when it continues one that had only just ended."""
    values = (
        *(period.node, period.pod_uid, period.container, period.device_uuid, str(period.state)),
        *(received_at, _mib(period.held_mib), _mib(period.peak_mib), _mib(period.granted_mib)),
        period.reason,
    )
    if await connection.fetchval(_REOPEN, *values) is not None:
        return False
    await connection.execute(_BEGIN, *values, period.namespace, period.pod_name, period.began_at)
    if period.state.violates:
        kind = drift_class(period.state)
        line = drift_line(kind, period.subject, period.sentence, repaired=False)
        await connection.execute(INSERT_DRIFT, *line)
    return True


def _mib(amount: int | None) -> int | None:
    return None if amount is None else min(amount, MAX_MIB)


def _period(row: Any) -> LimitPeriod:
    known = {each.name: row[each.name] for each in fields(LimitPeriod)}
    return LimitPeriod(**{**known, "state": LimitState(row["state"])})
