"""Which samples count in sums."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.domain.samples import Sample, Series
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory

from tests.integration.metrics.filled_ledger import fill
from tests.integration.metrics.service import sql

pytestmark = pytest.mark.integration


async def test_sums_count_a_granted_pod_while_it_held_its_grant(postgres_dsn: str) -> None:
    """Samples before, during, between, and after two grants; a pod without any counts as it is."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)

    def at(minute: float) -> datetime:
        return hour + timedelta(minutes=minute)

    def sample(pod_uid: str, minute: float) -> Sample:
        series = Series(
            node="n1",
            device_uuid="GPU-1",
            pod_uid=pod_uid,
            namespace="ns" if pod_uid else "",
            pod_name=pod_uid,
            container="c" if pod_uid else "",
        )
        return Sample(
            series=series,
            sampled_at=at(minute),
            memory_used_bytes=100,
            memory_limit_bytes=200,
            core_percent=50.0 if minute in (2, 9) else 0.0,
            core_limit_percent=50,
        )

    async with asyncpg.create_pool(postgres_dsn, min_size=1) as pool, sql(postgres_dsn) as db:
        store = PostgresUsageStore(pool)
        await fill(db)
        await db.execute("UPDATE allocations SET reserved_at = $1", at(8))
        await db.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " annotations, reserved_at, ended_at)"
            " VALUES (gen_random_uuid(), 'u1', 'ns', 'p', 2, 'n1', 'released', '{}', $1, $2)",
            at(1.5),
            at(3),
        )
        # Before, during, at the very end, between the two, during the second.
        minutes = (1, 2, 3, 4, 9)
        everybody = ("u1", "without-grant", "")
        await store.write([sample(uid, minute) for uid in everybody for minute in minutes])

        history = UsageHistory(
            store, MetricsInstruments(), lambda: hour + timedelta(hours=1, minutes=1), grace_s=0
        )
        await history.sum_up()

        rows = await db.fetch(
            "SELECT pod_uid, sample_count, core_percent_sum / sample_count AS core_percent"
            "  FROM usage_rollups WHERE bucket_s = 3600 ORDER BY pod_uid"
        )
        assert [tuple(row) for row in rows] == [
            ("", 5, 20.0),
            ("u1", 2, 50.0),
            ("without-grant", 5, 20.0),
        ]
        # What does not count is no reason to sum up again.
        assert await store.unsummed(300, hour) == []
