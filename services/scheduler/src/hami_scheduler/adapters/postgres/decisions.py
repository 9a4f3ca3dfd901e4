"""Decisions in Postgres, written in batches after the answers.

The cards that decisions were made on are stored once per content (`decision_snapshots`). A repeated
refusal takes newer cards at most once per `RENEW_S`, so a changing cluster does not write one
snapshot per attempt. A pod has at most `MAX_ROWS` different refusals and errors in an hour. The
newest row counts further ones, and takes the latest of them once per `RENEW_S`: the pod's author
may change the error each second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.record import request_of
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database
from hamicommon.ledger.partitions import keep_partitions

from hami_scheduler.ports.ledger import DecisionRow, OpenWait

# How old the cards may be that explain shows of a pod that is refused repeatedly.
RENEW_S = 60.0
# A snapshot that was used so recently may be referred to by a transaction that has not ended.
SPARE_S = 600.0

MAX_WATCH_DELAY_S = 60.0
"""Age of a refusal above which the pod watch must have seen the pod, if it exists."""
ENDED_TOGETHER = 1000

MAX_ROWS = 60
"""Maximum rows of one pod per hour, placements not counted."""

# Only the newest partitions are looked at for an identical decision.
_REPEAT = """
UPDATE decisions SET repeat_count = repeat_count + 1, last_at = $6, wait_end = NULL,
       wait_ended_at = CASE WHEN outcome = 'placed' OR pod_uid = group_key THEN wait_ended_at
                            ELSE 'infinity' END
 WHERE (at, id) = (SELECT at, id FROM decisions
                    WHERE pod_uid = $1 AND at > $6::timestamptz - interval '1 hour'
                    ORDER BY at DESC, id DESC LIMIT 1)
   AND outcome = $7 AND reason_counts = $2 AND message = $3 AND candidates = $4
   AND request = $5 AND allocation_id IS NOT DISTINCT FROM $8
RETURNING at, id, detail_at
"""
_ROWS = """
SELECT count(*) FROM decisions
 WHERE pod_uid = $1 AND at > $2::timestamptz - interval '1 hour' AND outcome <> 'placed'
"""
_COUNT_ON = """
UPDATE decisions SET repeat_count = repeat_count + 1, last_at = $2, wait_end = NULL,
       wait_ended_at = CASE WHEN pod_uid = group_key THEN wait_ended_at ELSE 'infinity' END
 WHERE (at, id) = (SELECT at, id FROM decisions
                    WHERE pod_uid = $1 AND at > $2::timestamptz - interval '1 hour'
                      AND outcome <> 'placed'
                    ORDER BY at DESC, id DESC LIMIT 1)
RETURNING at, id, detail_at
"""
_COLUMNS = (
    *("pod_uid", "namespace", "pod_name", "outcome", "node", "allocation_id", "candidates"),
    *("request", "policy", "reason_counts", "message", "shortfalls", "view_version", "phase_ms"),
    *("trace_id", "summary", "inventory", "counters", "group_key", "group_size"),
)
"""Columns in the order of `_values`; the first is $3."""
_PARAMETERS = [f"${number}" for number in range(3, 3 + len(_COLUMNS))]
_OUTCOME, _UID, _GROUP = (
    _PARAMETERS[_COLUMNS.index(name)] for name in ("outcome", "pod_uid", "group_key")
)
_REPLACE = f"""
UPDATE decisions SET detail_at = $2, ({", ".join(_COLUMNS)}) = ROW ({", ".join(_PARAMETERS)})
 WHERE (at, id) = ($1, ${len(_COLUMNS) + 3})
"""
_INSERT = f"""
INSERT INTO decisions (at, last_at, detail_at, {", ".join(_COLUMNS)}, wait_ended_at)
VALUES ($1, $1, $2, {", ".join(_PARAMETERS)},
        CASE WHEN {_OUTCOME} = 'placed' THEN timestamptz '-infinity'
             WHEN {_UID} = {_GROUP} THEN $1 ELSE 'infinity' END)
"""
_ARRIVALS = """
SELECT pod_uid, namespace, pod_name, request, policy FROM decisions
 ORDER BY at DESC, id DESC LIMIT $1
"""
_OPEN_WAITS = """
SELECT pod_uid, max(last_at) < now() - make_interval(secs => $1) AS is_watched FROM decisions
 WHERE outcome <> 'placed' AND wait_ended_at = 'infinity' GROUP BY pod_uid
"""
# Of a pod that went unseen only its last refusal is known, and kube-scheduler would have asked
# again within five minutes.
_END_WAITS = """
UPDATE decisions d SET wait_end = e.wait_end,
       wait_ended_at = CASE WHEN e.wait_end = 'gone'
                            THEN least(now(), d.last_at + interval '10 minutes') ELSE now() END
  FROM unnest($1::text[], $2::text[]) AS e (pod_uid, wait_end)
 WHERE d.pod_uid = e.pod_uid AND d.outcome <> 'placed' AND d.wait_ended_at = 'infinity'
"""
# The time of use is written seldom: it only has to be younger than SPARE_S.
_KEEP = """
INSERT INTO decision_snapshots (id, kind, content) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET used_at = now()
 WHERE decision_snapshots.used_at < now() - interval '5 minutes'
"""
_FORGET_COUNTERS = """
DELETE FROM decision_snapshots s
 WHERE kind = 'counters' AND used_at < now() - $1::interval
   AND NOT EXISTS (SELECT FROM decisions d WHERE d.counters = s.id)
RETURNING id
"""
_FORGET_INVENTORIES = """
DELETE FROM decision_snapshots WHERE kind = 'inventory' AND used_at < now() - $1::interval
RETURNING id
"""


class PostgresDecisionLog:
    """Store of decisions, and of waits of refused pods."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        """Write decisions; a repeated identical refusal or error only raises its row's count."""
        async with self._database.transaction() as connection:
            fresh: list[DecisionRow] = []
            found: list[tuple[_Row, DecisionRow]] = []
            for decision in decisions:
                if decision.outcome == "placed" and not decision.kept:
                    fresh.append(decision)
                    continue
                if any(other.pod_uid == decision.pod_uid for other in fresh):
                    # A repetition within the batch must find its first row.
                    await _insert(connection, fresh)
                    fresh = []
                row = await _count_repeat(connection, decision)
                if row is None:
                    fresh.append(decision)
                elif decision.decided_at - row.detail_at >= timedelta(seconds=RENEW_S):
                    found.append((row, decision))
            await _insert(connection, fresh)
            await _keep(connection, [decision for _, decision in found])
            await connection.executemany(
                _REPLACE,
                [(row.at, one.decided_at, *_values(one), row.id) for row, one in found],
            )

    async def arrivals(self, limit: int) -> list[PodRequest]:
        """Return the requests of the latest decisions, newest first, some pods repeatedly."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(_ARRIVALS, limit)
        return [request for row in rows if (request := request_of(row)) is not None]

    async def open_waits(self) -> list[OpenWait]:
        """Return refused pods that wait, each once. Raises: Unavailable, Conflict."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(_OPEN_WAITS, MAX_WATCH_DELAY_S)
        return [OpenWait(PodUid(row["pod_uid"]), row["is_watched"]) for row in rows]

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        """End the wait of each pod now, or for `gone` at the earliest possible time."""
        rows = sorted(ends.items())
        for first in range(0, len(rows), ENDED_TOGETHER):
            some = rows[first : first + ENDED_TOGETHER]
            async with self._database.transaction() as connection:
                await connection.execute(
                    _END_WAITS, [uid for uid, _ in some], [str(end) for _, end in some]
                )

    async def tidy(self, *, keep_days: int) -> int:
        """Delete decisions older than `keep_days`, and cards that no decision refers to."""
        async with self._database.connection() as connection:
            now = await connection.fetchval("SELECT now()")
            await keep_partitions(
                connection,
                "decisions",
                "at",
                today=now.astimezone(UTC).date(),
                keep_days=keep_days,
            )
            gone = await connection.fetch(_FORGET_COUNTERS, timedelta(seconds=SPARE_S))
            gone += await connection.fetch(_FORGET_INVENTORIES, timedelta(days=keep_days + 1))
        return len(gone)


@dataclass(frozen=True, slots=True)
class _Row:
    """Row that counted a decision."""

    at: datetime
    id: int
    detail_at: datetime


async def _count_repeat(connection: Connection, decision: DecisionRow) -> _Row | None:
    """Return the row that now counts the decision; None: it needs a new row."""
    row = await connection.fetchrow(
        _REPEAT,
        decision.pod_uid,
        dict(decision.reason_counts),
        decision.message,
        decision.candidates,
        dict(decision.request),
        decision.decided_at,
        decision.outcome,
        decision.allocation_id,
    )
    if row is not None:
        return _Row(row["at"], row["id"], row["detail_at"])
    if decision.outcome == "placed":
        return None
    about = (decision.pod_uid, decision.decided_at)
    if await connection.fetchval(_ROWS, *about) < MAX_ROWS:
        return None
    row = await connection.fetchrow(_COUNT_ON, *about)
    return None if row is None else _Row(row["at"], row["id"], row["detail_at"])


async def _insert(connection: Connection, decisions: Sequence[DecisionRow]) -> None:
    if decisions:
        await _keep(connection, decisions)
        rows = [(one.decided_at, one.decided_at, *_values(one)) for one in decisions]
        await connection.executemany(_INSERT, rows)


async def _keep(connection: Connection, decisions: Sequence[DecisionRow]) -> None:
    blobs = {
        blob.id: (blob.id, kind, blob.content)
        for decision in decisions
        for kind, blob in (("inventory", decision.inventory), ("counters", decision.counters))
        if blob is not None
    }
    # In one order, so that two replicas never wait for each other.
    await connection.executemany(_KEEP, [blobs[name] for name in sorted(blobs)])


def _values(decision: DecisionRow) -> tuple[object, ...]:
    return (
        *(decision.pod_uid, decision.namespace, decision.pod_name, decision.outcome),
        *(decision.node, decision.allocation_id, decision.candidates, dict(decision.request)),
        *(dict(decision.policy), dict(decision.reason_counts), decision.message, decision.detail),
        *(decision.view_version, dict(decision.phase_ms), decision.trace_id, decision.summary),
        None if decision.inventory is None else decision.inventory.id,
        None if decision.counters is None else decision.counters.id,
        *(decision.group_key, decision.group_size),
    )
