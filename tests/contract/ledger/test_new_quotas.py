"""A quota that comes while grants are written (SAFE-4)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest
from hami_scheduler.adapters.postgres import quotas as module
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hamicommon.errors import Conflict
from hamicommon.ledger.database import Database, open_database
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.waiting import eventually

pytestmark = pytest.mark.integration

MEMORY = "limits.nvidia.com/gpumem"
GRANT = """
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)
VALUES ($1::text::uuid, $1, 'team', 'pod', 1, 'n', 'bound')
"""


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as opened:
        yield opened


@pytest.fixture
async def writer(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("INSERT INTO nodes (name) VALUES ('n')")
    yield connection
    await connection.close()


async def row(database: Database) -> tuple[int, int] | None:
    found = await database.fetch("SELECT limit_amount, used_amount FROM quotas")
    return tuple(found[0]) if found else None


async def test_a_grant_that_saw_no_quota_is_counted_before_another_one_fits(
    database: Database, writer: asyncpg.Connection
) -> None:
    quotas = PostgresQuotas(database, quota_of=lambda _: {MEMORY: 60})
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute(GRANT, str(uuid.uuid4()))

    setting = asyncio.create_task(quotas.set_limits("team", {MEMORY: 100}))

    async def is_full() -> bool:
        return await row(database) == (100, 100)

    await eventually(is_full, "the quota to be there, with no room")
    assert not setting.done()
    await transaction.commit()
    await setting
    assert await row(database) == (100, 60)


async def test_a_transaction_that_only_looked_for_quotas_is_waited_for_too(
    database: Database, writer: asyncpg.Connection
) -> None:
    quotas = PostgresQuotas(database, quota_of=lambda _: {MEMORY: 60})
    transaction = writer.transaction()
    await transaction.start()
    await writer.fetch("SELECT FROM quotas WHERE namespace = 'team' FOR UPDATE")
    setting = asyncio.create_task(quotas.set_limits("team", {MEMORY: 100}))

    async def is_there() -> bool:
        return await row(database) is not None

    await eventually(is_there, "the quota")
    await writer.execute(GRANT, str(uuid.uuid4()))
    assert not setting.done()
    await transaction.commit()

    await setting
    assert await row(database) == (100, 60)


async def test_a_reader_is_waited_for_by_nobody(
    database: Database, writer: asyncpg.Connection
) -> None:
    quotas = PostgresQuotas(database, quota_of=lambda _: {})
    async with writer.transaction(isolation="repeatable_read"):
        await writer.fetch("SELECT FROM quotas, allocations")

        await quotas.set_limits("team", {MEMORY: 100})

    assert await row(database) == (100, 0)


async def test_a_transaction_without_end_leaves_the_quota_full_and_the_next_try_counts(
    database: Database, writer: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAIT_S", 0.0)
    quotas = PostgresQuotas(database, quota_of=lambda _: {MEMORY: 60})
    async with writer.transaction():
        await writer.execute(GRANT, str(uuid.uuid4()))
        for _ in range(2):
            with pytest.raises(Conflict, match="began before the quota still run"):
                await quotas.set_limits("team", {MEMORY: 100})
        assert await row(database) == (100, 100)

    await quotas.set_limits("team", {MEMORY: 100})
    assert await row(database) == (100, 60)
