"""Calls of operators in Postgres; a trigger lets nobody change or remove one (migration 0020)."""

from __future__ import annotations

from hamicommon.ledger.database import Database

from hami_scheduler.ports.callers import CallOutcome, OperatorCall

_BEGIN = """
INSERT INTO operator_calls (username, groups, source, address, verb, object, outcome)
VALUES ($1, $2, $3, $4, $5, $6, 'begun') RETURNING id
"""
_END = """
UPDATE operator_calls SET outcome = $2, message = $3, ended_at = now()
 WHERE id = $1 AND outcome = 'begun' RETURNING id
"""
# Who may not call can call all the more often.
_REFUSED = """
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


class PostgresCallJournal:
    """Port CallJournal."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, call: OperatorCall) -> int:
        """See the port."""
        row = await self._database.fetchrow(_BEGIN, *_columns(call))
        return int(row["id"])

    async def end(self, number: int, outcome: CallOutcome, message: str) -> None:
        """See the port."""
        await self._database.fetchrow(_END, number, outcome.value, message)

    async def refused(self, call: OperatorCall, message: str) -> None:
        """See the port."""
        await self._database.fetch(_REFUSED, *_columns(call), message)


def _columns(call: OperatorCall) -> tuple[object, ...]:
    caller = call.caller
    # Nobody was asked who calls, or the certificate has no name: unknown.
    user = caller.user or None
    return user, list(caller.groups), caller.source.value, call.address, call.verb, call.object
