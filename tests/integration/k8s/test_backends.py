"""The rights that `k8s/` gives in Postgres and NATS are exactly those a service needs."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import nats
import nats.errors
import nats.js.errors
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hami_metrics.adapters.ledger import PostgresLedger
from hami_metrics.adapters.postgres import PostgresUsageStore
from hami_metrics.domain.samples import Sample, Series
from hami_metrics.service import UsageRetention, keep_days
from hamicommon import events
from hamicommon.bus.client import Bus, FeedKind, Message
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.deliveries import USAGE, Delivery
from hamicommon.errors import Unavailable
from hamicommon.events import Usage
from hamicommon.ledger.migrations import rights
from hamicommon.ledger.pool import open_pool
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings, PostgresSettings
from pydantic import BaseModel, SecretStr

from tests.integration.db.migrations.test_roles import make_roles
from tests.integration.k8s.bus import bus_server
from tests.servers import psql
from tests.waiting import PATIENCE_S

M = TypeVar("M", bound=BaseModel)
NOW = datetime.now(UTC)
PASSWORDS = {"hami_scheduler": "of-the-scheduler", "hami_metrics": "of-the-metrics"}


def as_role(dsn: str, role: str) -> PostgresSettings:
    """The same database as another role, with the password that the roles' script gave it."""
    parts = urlsplit(dsn)
    login = f"{role}:{PASSWORDS[role]}"
    url = urlunsplit(parts._replace(netloc=f"{login}@{parts.hostname}:{parts.port}"))
    return PostgresSettings(dsn=SecretStr(url))


@pytest.fixture
def roles(postgres_dsn: str) -> str:
    for _ in range(2):  # the Job may run twice
        make_roles(postgres_dsn)
        psql(postgres_dsn, rights.grants())
    return postgres_dsn


async def test_the_metrics_role_keeps_usage_and_reads_the_ledger(roles: str) -> None:
    sample = Sample(series=Series(node="n", device_uuid="GPU-1"), sampled_at=NOW, core_percent=1.0)
    retention = UsageRetention(raw_days=1, fine_days=1, coarse_days=1, day_days=1)
    async with open_pool(as_role(roles, "hami_metrics"), "test") as pool:
        store = PostgresUsageStore(pool)

        assert await store.write([sample]) == 1
        await keep_days(store, retention, now=NOW + timedelta(days=3))
        assert await pool.fetchval("SELECT count(*) FROM usage_samples") == 0
        assert (await PostgresLedger(pool).snapshot()).cards == ()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.execute("INSERT INTO nodes (name) VALUES ('x')")


async def test_samples_that_came_before_their_day_are_moved_into_it(roles: str) -> None:
    later = NOW + timedelta(days=9)
    sample = Sample(series=Series(node="n", device_uuid="GPU-1"), sampled_at=later)
    async with open_pool(as_role(roles, "hami_metrics"), "test") as pool:
        store = PostgresUsageStore(pool)
        await store.write([sample])

        await store.keep_samples(later.date(), 3)

        assert await pool.fetchval("SELECT count(*) FROM usage_samples_default") == 0
        assert await pool.fetchval("SELECT sampled_at FROM usage_samples") == later


async def test_the_scheduler_role_cannot_rewrite_history(roles: str) -> None:
    async with open_pool(as_role(roles, "hami_scheduler"), "test") as pool:
        await pool.execute("INSERT INTO nodes (name) VALUES ('x')")
        await pool.execute("SELECT hami_ensure_partition('decisions', current_date + 30)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.execute("DELETE FROM allocation_events")


def login(url: str, user: str) -> NatsSettings:
    return NatsSettings(url=url, user=user, password=SecretStr("secret"))


def report() -> Usage:
    return Usage(node="n", agent_id="a", sequence=1, sampled_at=NOW, devices=(), containers=())


async def test_each_service_reaches_its_own_streams(tmp_path: Path) -> None:
    with bus_server(tmp_path, Ed25519PrivateKey.generate().public_key()) as url:
        async with (
            open_bus(login(url, "hami-scheduler"), "s", owns_streams=True) as scheduler,
            open_bus(login(url, "hami-metrics"), "m") as metrics,
        ):
            await scheduler.publish(events.usage_subject("n"), report(), message_id="1")
            assert await first(metrics, USAGE, Usage) == report()

            client = await nats.connect(
                url, user="hami-metrics", password="secret", inbox_prefix=b"_INBOX_hami-metrics"
            )
            try:
                with pytest.raises((nats.errors.TimeoutError, nats.js.errors.Error)):
                    await client.jetstream(timeout=0.5).stream_info(events.GRANTS_STREAM)
            finally:
                await client.close()


async def test_the_webhook_reads_what_admission_needs_and_no_grants(tmp_path: Path) -> None:
    numbers = events.ClusterNumbers(taken_at=NOW, agent_nodes=1, foreign_vendors=())
    with bus_server(tmp_path, Ed25519PrivateKey.generate().public_key()) as url:
        async with (
            open_bus(login(url, "hami-scheduler"), "s", owns_streams=True) as scheduler,
            open_bus(login(url, "hami-webhook"), "w") as webhook,
        ):
            await scheduler.publish(events.LEDGER_CLUSTER_SUBJECT, numbers, message_id="1")
            serving = asyncio.create_task(scheduler.serve_feeds("scheduler"))
            assert await first(webhook, FeedKind.LEDGER_NUMBERS, events.ClusterNumbers) == numbers
            await end([serving])
            with pytest.raises(Unavailable):
                await webhook.publish(events.grants_subject("n"), numbers, message_id="2")


async def first(bus: Bus, what: Delivery | FeedKind, kind: type[M]) -> M:
    """The first message that arrives."""
    got: asyncio.Future[M] = asyncio.get_running_loop().create_future()

    async def handle(message: Message) -> None:
        if not got.done():
            got.set_result(kind.model_validate_json(message.data))

    task = asyncio.create_task(
        bus.consume(what, handle) if isinstance(what, Delivery) else bus.follow_feed(what, handle)
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await got
    finally:
        task.cancel()
        await asyncio.wait([task])
