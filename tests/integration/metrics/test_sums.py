"""Samples are stored once, and which of them count in sums."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.domain.samples import COARSE_S, FINE_S, Sample, Series, bucket_of
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.integration.metrics.filled_ledger import fill
from tests.integration.metrics.service import sql


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
        assert await store.unsummed_buckets(hour) == []


async def test_what_is_stored_already_is_stored_once_and_the_rest_of_its_batch_too(
    postgres_dsn: str,
) -> None:
    """Also text that Postgres could not hold: what a tenant names a container."""
    at = datetime.now(UTC)
    hostile = Series(node="n1", device_uuid="GPU-1", pod_uid="u1", container="a\0\tb\\N")

    def samples(*numbers: int) -> list[Sample]:
        return [
            Sample(series=hostile, sampled_at=at + timedelta(seconds=number)) for number in numbers
        ]

    pool_settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_pool(pool_settings, "test") as pool, sql(postgres_dsn) as db:
        store = PostgresUsageStore(pool)
        assert await store.write(samples(1, 2)) == 2
        assert await store.write(samples(3, 2, 2, 1)) == 1
        assert await store.write([]) == 0

        rows = await db.fetch("SELECT container, sampled_at FROM usage_samples ORDER BY 2")
        assert [row["container"] for row in rows] == ["a�\tb\\N"] * 3
        assert [row["sampled_at"] for row in rows] == [
            at + timedelta(seconds=number) for number in (1, 2, 3)
        ]


def sum_samples(samples: Sequence[Sample]) -> tuple[float | None, ...]:
    """Compute a bucket again from its samples.

    An unknown reading counts as the average of the others.
    """

    def total(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) * len(values) if known else None

    def most(values: list[float | None]) -> float | None:
        return max((value for value in values if value is not None), default=None)

    memory = [sample.memory_used_bytes for sample in samples]
    core = [sample.core_percent for sample in samples]
    limit = [sample.memory_limit_bytes for sample in samples]
    return len(samples), total(memory), most(memory), most(limit), total(core), most(core)


@pytest.mark.parametrize("seed", range(3))
async def test_sums_are_those_of_the_samples_and_hours_those_of_their_parts(
    postgres_dsn: str, seed: int
) -> None:
    """Readings known and unknown; summed up bucket by bucket, some of them twice, in any order."""
    chance = random.Random(seed)
    hour = datetime(2026, 11, 20, 10, tzinfo=UTC)
    cards = [Series(node="n1", device_uuid=f"GPU-{number}") for number in range(3)]
    lost = Series(node="n2", device_uuid="GPU-9")

    def hide_some(value: float) -> float | None:
        return value if chance.random() < 0.6 else None

    samples = [
        Sample(
            series=card,
            sampled_at=hour + timedelta(seconds=second),
            memory_used_bytes=hide_some(chance.randrange(2**37)),
            memory_limit_bytes=hide_some(2**37),
            core_percent=hide_some(chance.uniform(0, 100)) if card is not cards[2] else None,
        )
        for card in (*cards, lost)
        for second in chance.sample(range(3600), 40)
    ]
    starts = [hour + timedelta(minutes=minute) for minute in range(0, 60, 5)] * 2
    chance.shuffle(starts)
    async with asyncpg.create_pool(postgres_dsn, min_size=1) as pool, sql(postgres_dsn) as db:
        store = PostgresUsageStore(pool)
        await store.write(samples)
        for start in starts:
            await store.sum_up("n1", start)

        found = await db.fetch(
            "SELECT bucket_s, bucket_start, device_uuid, sample_count, memory_used_sum_bytes,"
            " memory_used_max_bytes, memory_limit_max_bytes, core_percent_sum, core_percent_max"
            " FROM usage_rollups"
        )
        assert await store.unsummed_buckets(hour) == sorted(
            {("n2", bucket_of(each.sampled_at, FINE_S)) for each in samples if each.series is lost},
            key=lambda item: item[1],
        )
    wanted = {
        (bucket_s, start, card.device_uuid): sum_samples(
            [
                each
                for each in samples
                if each.series is card and bucket_of(each.sampled_at, bucket_s) == start
            ]
        )
        for bucket_s in (FINE_S, COARSE_S)
        for card in cards
        for start in {bucket_of(e.sampled_at, bucket_s) for e in samples if e.series is card}
    }
    assert {tuple(row)[:3] for row in found} == set(wanted)
    for row in found:
        values = tuple(row)[3:]
        sums = wanted[tuple(row)[:3]]
        if row["bucket_s"] == COARSE_S:
            # An unknown reading counts as the average of its five minutes, not of its hour.
            values, sums = values[:1] + values[2:4] + values[5:], sums[:1] + sums[2:4] + sums[5:]
        assert values == pytest.approx(sums), tuple(row)[:3]


async def test_two_who_sum_up_at_once_leave_an_hour_with_all_its_parts(postgres_dsn: str) -> None:
    hour = datetime(2026, 11, 20, 10, tzinfo=UTC)
    card = Series(node="n1", device_uuid="GPU-1")
    starts = [hour + timedelta(minutes=minute) for minute in range(0, 60, 5)]
    async with asyncpg.create_pool(postgres_dsn, min_size=4) as pool, sql(postgres_dsn) as db:
        store = PostgresUsageStore(pool)
        await store.write([Sample(series=card, sampled_at=start) for start in starts])

        await asyncio.gather(*(store.sum_up("n1", start) for start in (*starts, *starts)))

        assert await db.fetchval(
            "SELECT sample_count FROM usage_rollups WHERE bucket_s = 3600"
        ) == len(starts)
