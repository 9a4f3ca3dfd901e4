"""A ledger that holds four days of a made-up cluster, for tests that only read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import asyncpg
from hami_metrics.adapters.capacity import sum_up_capacity
from hami_metrics.adapters.namespaces import sum_up_namespaces

from bench.pages import made_up
from bench.pages.auditing import fill_audit
from bench.pages.filler import fill
from bench.pages.made_up import Grant
from tests.servers import Databases, in_thread, migrate

NOW = datetime.now(UTC).replace(microsecond=0)
DAYS, PODS = 4.0, 4000
IDLE = (
    "UPDATE usage_rollups SET core_percent_max = 0, core_percent_sum = 0"
    " WHERE bucket_s = 3600 AND namespace = 'team-02'"
)
"""A team that holds its slices and does nothing."""
HISTORY = list(made_up.grants(PODS, days=DAYS, until=NOW))


@dataclass
class Filled:
    """The database, and the grant whose card was sick."""

    dsn: str
    patient: Grant


@contextmanager
def four_days(databases: Databases) -> Iterator[Filled]:
    """The filled ledger of one test session."""
    patient = next(g for g in reversed(HISTORY) if g.ended is None)

    async def make(dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await fill(connection, allocations=PODS, usage=200_000, days=DAYS, until=NOW)
            await fill_audit(connection, days=DAYS)
            await connection.execute(IDLE)
            await sum_up_namespaces(connection, NOW)
            await sum_up_capacity(connection, NOW)
            await _trouble(connection, patient)
        finally:
            await connection.close()

    with databases.database() as dsn:
        migrate(dsn)
        in_thread(lambda: asyncio.run(make(dsn)))
        yield Filled(dsn=dsn, patient=patient)


async def _trouble(connection: asyncpg.Connection, patient: Grant) -> None:
    """A card that is sick while a pod is on it, and a pod that waits."""
    await connection.execute(
        "INSERT INTO device_health_events (node, device_uuid, healthy, reason, at)"
        " VALUES ($1, $2, false, 'XID 48', now())",
        patient.node,
        patient.uuid,
    )
    await connection.execute(
        "UPDATE devices SET healthy = false, health_reason = 'XID 48' WHERE uuid = $1", patient.uuid
    )
    await connection.execute(
        # kube-scheduler has not asked about it for an hour: it still waits.
        "INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, reason_counts,"
        " summary, wait_ended_at) VALUES (now() - interval '1 hour', now() - interval '1 hour',"
        """ 'w', 'team-01', 'waits', 'refused',"""
        """ '{"CardTypeMismatch": 100}', 'no A200', 'infinity')"""
    )
    # Of a version that noted no end of waits: for it ten minutes hold.
    await connection.execute(
        "INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, reason_counts,"
        " summary) VALUES (now() - interval '3 hours', now() - interval '3 hours', 'o', 'team-01',"
        """ 'older', 'refused', '{"CardTypeMismatch": 100}', 'no A200')"""
    )
    # Refused a moment ago, and deleted since.
    await connection.execute(
        "INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, reason_counts,"
        " summary, wait_end, wait_ended_at) VALUES (now() - interval '1 minute',"
        " now() - interval '1 minute', 'g', 'team-01', 'deleted', 'refused',"
        """ '{"CardTypeMismatch": 100}', 'no A200', 'deleted', now() - interval '1 second')"""
    )
    # Eight pods that start together, and room for seven.
    await connection.execute(
        "INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, reason_counts,"
        " summary, group_key, group_size) VALUES (now() - interval '2 hours',"
        " now() - interval '1 hour', 'group/ml/train-7', 'ml', '', 'refused',"
        """ '{"CardInsufficientMemory": 8}', '7 of 8 fit', 'group/ml/train-7', 8)"""
    )
    await connection.execute(
        "INSERT INTO limit_periods (node, pod_uid, namespace, pod_name, container, device_uuid,"
        " state, began_at, seen_at, held_mib, peak_mib, granted_mib)"
        " VALUES ($1, 't', 'team-01', 'takes', 'main', $2, 'exceeded', now(), now(), 9, 9, 4)",
        patient.node,
        patient.uuid,
    )
