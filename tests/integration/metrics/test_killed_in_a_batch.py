"""The service is killed in the middle of a batch, and the bus is read from its beginning, twice:
each sample is there once, and the sums are those of the samples."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
from hamicommon import events
from hamicommon.bus.client import Bus, Outgoing
from hamicommon.bus.deliveries import USAGE

from tests.integration.metrics.service import bus, grant, report, running, sql, until

REPORTS = 100
SAMPLES_EACH = 2
REPEATED = "hami_usage_samples_total"


@asynccontextmanager
async def process(postgres_dsn: str, nats_url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The service as its users run it."""
    child = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "hami-metrics",
        env={
            **os.environ,
            "HAMI_POSTGRES_DSN": postgres_dsn,
            "HAMI_NATS_URL": nats_url,
            "HAMI_METRICS_HTTP_BIND": "127.0.0.1:0",
        },
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def read_again(bus: Bus, nats_url: str) -> None:
    """Delete the consumer, with its acknowledgements, and let the scheduler create a new one."""
    client = await nats.connect(nats_url)
    await client.jetstream().delete_consumer(USAGE.stream, USAGE.consumer)
    await client.close()
    await bus.streams.check()


async def test_a_kill_in_a_batch_and_two_replays_store_every_sample_once(
    postgres_dsn: str, nats_url: str
) -> None:
    past = datetime.now(UTC) - timedelta(minutes=30)
    await grant(postgres_dsn)
    moments = [past + timedelta(seconds=number) for number in range(REPORTS)]
    async with bus(nats_url) as client, sql(postgres_dsn) as db, sql(postgres_dsn) as other:
        # Another transaction is storing a sample of the middle: the batch waits for its outcome.
        held = other.transaction()
        await held.start()
        await other.execute(
            "INSERT INTO usage_samples (sampled_at, node, device_uuid) VALUES ($1, 'n1', 'GPU-1')",
            moments[REPORTS // 2],
        )
        outgoing = [
            Outgoing(
                subject=events.usage_subject("n1"),
                data=report(number, at).model_dump_json().encode(),
                message_id=f"m{number}",
            )
            for number, at in enumerate(moments)
        ]
        assert set(await client.publish_all(outgoing)) == {None}

        async def a_batch_waits() -> bool:
            return bool(
                await db.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                    " AND application_name = 'hami-metrics' AND query LIKE 'COPY%'"
                )
            )

        async with process(postgres_dsn, nats_url) as child:
            await until("a batch that waits", a_batch_waits)
            child.send_signal(signal.SIGKILL)
            await child.wait()
        await held.rollback()
        await read_again(client, nats_url)

        async with running(postgres_dsn, nats_url) as (app, _):

            def read_repeated() -> float:
                value = app.instruments.registry.get_sample_value(REPEATED, {"result": "repeated"})
                return value or 0.0

            async def all_stored() -> bool:
                count = await db.fetchval("SELECT count(*) FROM usage_samples")
                return bool(count == REPORTS * SAMPLES_EACH)

            await until("every sample stored", all_stored)
            before = read_repeated()
            await read_again(client, nats_url)

            async def all_repeated() -> bool:
                return read_repeated() >= before + REPORTS * SAMPLES_EACH

            await until("every sample read once more", all_repeated)
            assert await all_stored()

            async def all_summed() -> bool:
                sums = await db.fetch(
                    "SELECT sum(sample_count) FROM usage_rollups GROUP BY bucket_s ORDER BY 1"
                )
                return [row[0] for row in sums] == [REPORTS * SAMPLES_EACH] * 2

            await until("every sample summed up", all_summed)
        stored = await db.fetch("SELECT sampled_at, device_uuid, container FROM usage_samples")
        assert {tuple(row) for row in stored} == {
            (at, "GPU-1", container) for at in moments for container in ("", "c")
        }
