"""Read everything that is stored about one pod, as of a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from hamicommon.domain.ids import NodeName
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.granted_cards import PodCard, read_pod_cards
from hamicommon.telemetry.waterfall import TraceSpan, Waterfall, read_spans, spans_of_pod, waterfall

from hami_metrics.pages.cluster import Row
from hami_metrics.pages.readings import read_use
from hami_metrics.pages.waterfall import LastHour

MAX_ATTEMPTS = 50
MAX_EVENTS = 200
MAX_DECISIONS = 60
"""Maximum number of decisions; a pod has at most so many different ones in an hour."""
MAX_NAMESAKES = 20
MAX_MEMBERS = 1000
"""The most that may start together."""
MAX_COMPARED = 2000
"""Maximum number of decisions, the newest, from which percentiles are computed."""
MAX_TRACE_BYTES = 2 * 1024 * 1024
"""Maximum bytes read from the end of each file of spans."""

_FIND = """
SELECT pod_uid, max(at) AS at FROM (
    SELECT pod_uid, reserved_at AS at FROM allocations
     WHERE namespace = $1 AND pod_name = $2 AND reserved_at <= $3
    UNION ALL
    SELECT pod_uid, last_at FROM decisions
     WHERE namespace = $1 AND pod_name = $2 AND outcome <> 'placed'
       AND at <= $3 AND at > $3::timestamptz - interval '31 days') named
 GROUP BY pod_uid ORDER BY 2 DESC LIMIT 21
"""
_ATTEMPTS = f"""
SELECT a.id::text AS id, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.reason, a.origin,
       a.reserved_at, a.ended_at, a.created_by,
       coalesce(nullif(a.deployment, ''), nullif(a.owner_name, '')) AS owner,
       ARRAY(SELECT jsonb_build_object('container', d.container_name,
                    'role', CASE WHEN d.sidecar THEN 'sidecar' ELSE d.role END,
                    'device_uuid', d.device_uuid, 'memory_mib', d.memory_mib,
                    'core_percent', d.core_percent)::text
               FROM allocation_devices d WHERE d.allocation_id = a.id
              ORDER BY d.container_index, d.position LIMIT 200) AS slices
  FROM allocations a WHERE a.pod_uid = $1 AND a.reserved_at <= $2
 ORDER BY a.attempt DESC LIMIT {MAX_ATTEMPTS}
"""
_EVENTS = f"""
SELECT e.at, a.attempt, a.node, e.previous_state, e.state, e.reason, e.actor
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.pod_uid = $1 AND e.at <= $2 ORDER BY e.sequence DESC LIMIT {MAX_EVENTS}
"""
_DECISIONS = f"""
SELECT at, last_at, namespace, pod_name, outcome, node, candidates, summary, message,
       reason_counts, repeat_count, phase_ms, trace_id, view_version, request, policy,
       CASE WHEN isfinite(wait_ended_at) THEN wait_ended_at
            WHEN wait_ended_at = '-infinity' THEN last_at + interval '10 minutes'
       END AS wait_ended_at, wait_end, group_key
  FROM decisions WHERE pod_uid = $1 AND at <= $2 ORDER BY at DESC, id DESC LIMIT {MAX_DECISIONS}
"""
_LIMITS = """
SELECT container, device_uuid, state, reason, began_at, ended_at FROM limit_periods
 WHERE pod_uid = $1 AND began_at <= $2 ORDER BY ended_at DESC NULLS FIRST, began_at DESC LIMIT 20
"""
_CHECKED = "SELECT checked_at FROM limit_checks WHERE node = $1"
_QUOTAS = """
SELECT resource, limit_amount AS "limit", used_amount AS used FROM quotas
 WHERE namespace = $1 AND (limit_amount IS NOT NULL OR used_amount > 0) ORDER BY resource LIMIT 50
"""
_PHASES = f"""
SELECT phase_ms FROM decisions
 WHERE at <= $1 AND at > $1 - interval '1 hour' AND pod_name <> ''
 ORDER BY at DESC LIMIT {MAX_COMPARED}
"""
# `allocated` is how long a pod runs: no step of ours.
_STATES = f"""
SELECT state, extract(epoch FROM until - at)::float8 * 1000 AS ms FROM (
    SELECT state, at, lead(at) OVER (PARTITION BY pod_uid ORDER BY sequence) AS until FROM (
        SELECT pod_uid, sequence, state, at FROM allocation_events
         WHERE at <= $1 AND at > $1 - interval '1 hour'
         ORDER BY at DESC LIMIT {MAX_COMPARED}) newest) steps
 WHERE until IS NOT NULL AND state <> 'allocated'
"""


_GROUP = f"""
SELECT at, last_at, outcome, group_size, repeat_count, summary FROM decisions
 WHERE pod_uid = $1 AND at <= $2 ORDER BY at DESC, id DESC LIMIT {MAX_DECISIONS}
"""
# A pod's last decision, and where it holds slices.
_MEMBERS = f"""
SELECT DISTINCT ON (d.pod_uid) d.pod_uid, d.pod_name, d.outcome, d.summary, d.last_at,
       (SELECT node FROM allocations a
         WHERE a.pod_uid = d.pod_uid AND a.reserved_at <= $2
           AND (a.ended_at IS NULL OR a.ended_at > $2) LIMIT 1) AS node
  FROM decisions d
 WHERE d.group_key = $1 AND d.pod_name <> '' AND d.at <= $2
 ORDER BY d.pod_uid, d.at DESC LIMIT {MAX_MEMBERS}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """Stored data of one pod; each sequence of rows is the result of one query above."""

    uid: str
    namespace: str
    name: str
    attempts: Sequence[Row]
    """Grants, the newest first; `slices` are parts of cards by container."""
    events: Sequence[Row]
    """State changes of the pod's grants, in the order of their sequence numbers."""
    decisions: Sequence[Row]
    """Placement decisions, the newest first."""
    limits: Sequence[Row]
    """Periods in which a container's limits were not enforced, or that is unknown."""
    limits_checked_at: datetime | None
    quotas: Sequence[Row]
    """Quotas of the pod's namespace, in the resources' own units; `limit` None: no limit."""
    use: Sequence[Row]
    cards: Sequence[PodCard]
    """Cards that the pod holds now, with their condition; empty for the past."""
    namesakes: Sequence[Row]
    """Other pods of that name: uid, and time of the last grant."""


async def find_pods(
    connection: Connection, namespace: str, name: str, at: datetime
) -> Sequence[Row]:
    """Return uids of pods with that name and when each was last seen, the newest first."""
    rows: Sequence[Row] = await connection.fetch(_FIND, namespace, name, at)
    return rows


async def read_pod(
    connection: Connection, uid: str, at: datetime, *, silent: Collection[NodeName] | None
) -> PodRecord | None:
    """Read the record; None: the ledger has no such pod.

    `silent`: nodes whose agents are silent; None: `at` is a moment of the past.
    """
    attempts = await connection.fetch(_ATTEMPTS, uid, at)
    decisions = await connection.fetch(_DECISIONS, uid, at)
    known = (attempts or decisions or [None])[0]
    if known is None:
        return None
    node = attempts[0]["node"] if attempts else None
    namespace, name = known["namespace"], known["pod_name"]
    events = await connection.fetch(_EVENTS, uid, at)
    names = await find_pods(connection, namespace, name, at)
    slices = [[orjson.loads(one) for one in row["slices"]] for row in attempts]
    is_past = silent is None
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        attempts=[{**row, "slices": own} for row, own in zip(attempts, slices, strict=True)],
        events=list(reversed(events)),
        decisions=decisions,
        limits=await connection.fetch(_LIMITS, uid, at),
        limits_checked_at=None if node is None else await connection.fetchval(_CHECKED, node),
        quotas=await connection.fetch(_QUOTAS, namespace),
        use=[]
        if node is None
        else await read_use(connection, [node], at, uids=[uid], summed=is_past),
        cards=[]
        if silent is None
        else await read_pod_cards(connection, pod_uid=uid, silent=silent),
        namesakes=[row for row in names if row["pod_uid"] != uid][:MAX_NAMESAKES],
    )


async def read_group(
    connection: Connection, key: str, at: datetime
) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the decisions on a group, the newest first, and its pods, by name."""
    decisions = await connection.fetch(_GROUP, key, at)
    members = await connection.fetch(_MEMBERS, key, at)
    return decisions, sorted(members, key=lambda row: str(row["pod_name"]))


async def read_last_hour(connection: Connection, at: datetime) -> LastHour:
    """Read the steps of all pods in the hour before, up to `MAX_COMPARED` of each kind."""
    states: dict[str, list[float]] = {}
    for row in await connection.fetch(_STATES, at):
        states.setdefault(row["state"], []).append(row["ms"])
    phases = [row["phase_ms"] for row in await connection.fetch(_PHASES, at)]
    return LastHour(phases_ms=phases, states_ms=states)


class TraceFiles:
    """Spans of all services in files of this machine (the local system).

    On a cluster spans are at the collector, and a page has a link to its viewer.
    """

    def __init__(self, folder: Path | None) -> None:
        """`folder`: contains `*.jsonl` with a finished span per line; None: no such folder."""
        self._folder = folder
        self._turn = asyncio.Lock()
        self._known: dict[Path, tuple[tuple[int, int], list[TraceSpan]]] = {}
        """By file: its size and change time, and its spans at that time."""

    async def of_pod(self, uid: str) -> Waterfall | None:
        """Return the pod's waterfall over all services; None: no spans."""
        if self._folder is None:
            return None
        async with self._turn:
            return await asyncio.to_thread(self._drawn, self._folder, uid)

    def _drawn(self, folder: Path, uid: str) -> Waterfall | None:
        every = [span for path in sorted(folder.glob("*.jsonl")) for span in self._spans(path)]
        own = spans_of_pod(every, uid)
        return waterfall(own, every) if own else None

    def _spans(self, path: Path) -> list[TraceSpan]:
        """Read a file's spans; an unreadable file has none, as the page has more to show."""
        try:
            found = path.stat()
            state = (found.st_size, found.st_mtime_ns)
            if path not in self._known or self._known[path][0] != state:
                self._known[path] = (state, read_spans(_lines(path, found.st_size)))
        except OSError:
            return []
        return self._known[path][1]


def _lines(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as opened:
        opened.seek(max(0, size - MAX_TRACE_BYTES))
        yield from opened
