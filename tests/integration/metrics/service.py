"""The metrics service as it runs, and reports for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import asyncpg
import httpx
from hami_metrics.bootstrap import MetricsApp, open_app
from hami_metrics.settings import Settings
from hamicommon import events
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.events import ContainerSample, DeviceSample, Usage
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings, PostgresSettings
from pydantic import SecretStr

from tests.waiting import eventually


def settings(postgres_dsn: str, nats_url: str) -> Settings:
    return Settings(
        http_bind="127.0.0.1:0",
        snapshot_interval_s=0.1,
        rollup_interval_s=0.1,
        rollup_grace_s=0,
        postgres=PostgresSettings(dsn=SecretStr(postgres_dsn)),
        nats=NatsSettings(url=nats_url),
    )


@asynccontextmanager
async def running(
    postgres_dsn: str, nats_url: str
) -> AsyncIterator[tuple[MetricsApp, httpx.AsyncClient]]:
    async with (
        open_app(settings(postgres_dsn, nats_url)) as app,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}") as http,
    ):
        yield app, http


@asynccontextmanager
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """The scheduler's connection, which settles what the service has read."""
    async with open_bus(NatsSettings(url=nats_url), "test", owns_streams=True) as client:
        settling = asyncio.create_task(client.settle_deliveries("scheduler"))
        try:
            yield client
        finally:
            await end([settling])


@asynccontextmanager
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    await eventually(condition, what)


async def grant(dsn: str) -> None:
    """Grant the pod of `report` its card."""
    async with sql(dsn) as db:
        await db.execute("INSERT INTO nodes (name, inventory_at) VALUES ('n1', now())")
        await db.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " annotations, reserved_at) VALUES (gen_random_uuid(), 'u1', 'ns', 'p', 1, 'n1',"
            " 'allocated', '{}', now() - interval '1 day')"
        )


def report(sequence: int, at: datetime) -> Usage:
    return Usage(
        node="n1",
        agent_id="a1",
        sequence=sequence,
        sampled_at=at,
        devices=(
            DeviceSample(
                uuid="GPU-1",
                index=0,
                type="A100",
                memory_used_bytes=500,
                memory_total_bytes=1000,
                gpu_percent=40.0,
            ),
        ),
        containers=(
            ContainerSample(
                pod_uid="u1",
                namespace="ns",
                pod="p",
                container="c",
                vdevice_index=0,
                uuid="GPU-1",
                memory_used_bytes=100,
                memory_limit_bytes=200,
                core_percent=None,
                core_limit_percent=30,
            ),
        ),
    )


async def publish(client: Bus, usage: Usage) -> None:
    subject = events.usage_subject(usage.node)
    await client.publish(subject, usage, message_id=f"{usage.agent_id}-{usage.sequence}")
