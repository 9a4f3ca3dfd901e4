"""Decisions in Postgres, written in batches after the replies."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence

import orjson
from hamicommon.db.database import Connection, Database
from hamicommon.domain.ids import NodeName

from hami_scheduler.ports import Decision

# Only the newest partitions are looked at for an identical refusal.
_REPEAT = """
UPDATE decisions SET repeat_count = repeat_count + 1, last_at = $6
 WHERE (at, id) = (SELECT at, id FROM decisions
                    WHERE pod_uid = $1 AND at > $6::timestamptz - interval '1 hour'
                    ORDER BY at DESC, id DESC LIMIT 1)
   AND outcome = 'refused' AND reason_counts = $2 AND message = $3 AND candidates = $4
   AND request = $5
RETURNING id
"""
_INSERT = """
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, node, allocation_id,
                       candidates, request, policy, reason_counts, message, shortfalls,
                       view_version, phase_ms, trace_id)
VALUES ($1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
"""
_COUNTED = re.compile(r"^\d+/\d+ ")


class PostgresDecisionLog:
    """Port DecisionLog."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, decisions: Sequence[Decision]) -> None:
        """See the port."""
        async with self._database.transaction() as connection:
            fresh = [
                decision
                for decision in decisions
                if decision.outcome != "refused" or not await _repeated(connection, decision)
            ]
            await connection.executemany(_INSERT, [_columns(decision) for decision in fresh])


async def _repeated(connection: Connection, decision: Decision) -> bool:
    row = await connection.fetchrow(
        _REPEAT,
        decision.pod_uid,
        reason_counts(decision.reasons),
        decision.message,
        decision.candidates,
        dict(decision.request),
        decision.decided_at,
    )
    return row is not None


def _columns(decision: Decision) -> tuple[object, ...]:
    detail = {"nodes": dict(decision.reasons), "cards": list(decision.shortfalls)}
    return (
        decision.decided_at,
        decision.pod_uid,
        decision.namespace,
        decision.pod_name,
        decision.outcome,
        decision.node,
        decision.allocation_id,
        decision.candidates,
        dict(decision.request),
        dict(decision.policy),
        reason_counts(decision.reasons),
        decision.message,
        zlib.compress(orjson.dumps(detail, default=str), 1) if decision.reasons else None,
        decision.view_version,
        dict(decision.phase_ms),
        decision.trace_id,
    )


def reason_counts(reasons: Mapping[NodeName, str]) -> dict[str, int]:
    """Reason word -> number of nodes that gave it.

    >>> reason_counts({"a": "1/2 CardInsufficientMemory, 1/2 CardNotHealth", "b": "node gone"})
    {'CardInsufficientMemory': 1, 'CardNotHealth': 1, 'node gone': 1}
    """
    return dict(
        Counter(
            _COUNTED.sub("", part) for reason in reasons.values() for part in reason.split(", ")
        )
    )
