"""What the steps of other pods took in the hour before a moment."""

from __future__ import annotations

from datetime import datetime

from hamicommon.ledger.connection import Connection

from hami_metrics.pages.domain.ranks import LastHour

MOST_COMPARED = 2000
"""The newest: more make no percentile better, and a busy hour has a hundred thousand."""

_PHASES = f"""
SELECT phase_ms FROM decisions WHERE at <= $1 AND at > $1 - interval '1 hour'
 ORDER BY at DESC LIMIT {MOST_COMPARED}
"""
# `allocated` is how long a pod runs: no step of ours.
_STATES = f"""
SELECT state, extract(epoch FROM until - at)::float8 * 1000 AS ms FROM (
    SELECT state, at, lead(at) OVER (PARTITION BY pod_uid ORDER BY sequence) AS until FROM (
        SELECT pod_uid, sequence, state, at FROM allocation_events
         WHERE at <= $1 AND at > $1 - interval '1 hour'
         ORDER BY at DESC LIMIT {MOST_COMPARED}) newest) steps
 WHERE until IS NOT NULL AND state <> 'allocated'
"""


async def read_last_hour(connection: Connection, at: datetime) -> LastHour:
    """Of all pods, up to `MOST_COMPARED` of each."""
    states: dict[str, list[float]] = {}
    for row in await connection.fetch(_STATES, at):
        states.setdefault(row["state"], []).append(row["ms"])
    phases = [row["phase_ms"] for row in await connection.fetch(_PHASES, at)]
    return LastHour(phases_ms=phases, states_ms=states)
