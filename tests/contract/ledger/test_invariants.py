"""Never over-commit: any sequence of reservations, and quotas that come during writes."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from hami_scheduler.adapters.postgres import quotas as module
from hami_scheduler.adapters.postgres.allocations.store import PostgresAllocationStore
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import PodUid
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.ledger.database import Database, open_database
from hamicommon.settings import PostgresSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.contract.ledger.allocation_stores import Harness, card, container, draft, quota_of
from tests.fakes.ledger import FakeLedger
from tests.waiting import eventually

pytestmark = pytest.mark.integration


CARDS = ("0", "1", "2")
share = st.tuples(st.sampled_from(CARDS), st.integers(0, 1000), st.sampled_from((0, 30, 50, 100)))
shares = st.lists(share, min_size=1, max_size=2, unique_by=lambda s: s[0])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 7), shares),
        st.tuples(st.just("end"), st.integers(0, 7), st.none()),
    ),
    max_size=25,
)


async def play(harness: Harness, script: list[tuple[str, int, Any]]) -> list[Any]:
    """Run the script; return the result of each step, and the counters at the end."""
    await harness.add(*(card(name, index=int(name)) for name in CARDS))
    results: list[Any] = []
    for verb, number, wanted in script:
        pod = f"pod-{number}"
        try:
            if verb == "reserve":
                await harness.store.begin(draft(pod, container(*wanted)))
            elif await harness.store.live_of(PodUid(pod)) is not None:
                await harness.advance(pod, AllocationState.RELEASED)
            results.append("done")
        except CapacityConflict:
            results.append("no room")
        except Conflict:
            results.append("conflict")
        for name in CARDS:
            slots, memory, core = await harness.used_amounts(name)
            assert 0 <= slots <= 3
            assert 0 <= memory <= 1000
            assert 0 <= core <= 100
    results.append([await harness.used_amounts(name) for name in CARDS])
    return results


@given(script=steps)
@settings(max_examples=60)
def test_the_fake_never_over_commits(script: list[tuple[str, int, Any]]) -> None:
    fake = FakeLedger(quota_of=quota_of)

    asyncio.run(play(Harness(store=fake, ledger=fake, fake=fake), script))


@pytest.mark.integration
@given(script=steps)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_postgres_does_what_the_fake_does(
    postgres_dsn: str, script: list[tuple[str, int, Any]]
) -> None:
    async def both() -> None:
        fake = FakeLedger(quota_of=quota_of)
        expected = await play(Harness(store=fake, ledger=fake, fake=fake), script)
        await _empty(postgres_dsn)
        dsn = PostgresSettings(dsn=postgres_dsn)
        async with open_database(dsn, application="test") as database:
            store = PostgresAllocationStore(database, quota_of=quota_of, on_commit=lambda: None)
            real = Harness(
                store=store,
                ledger=store,
                database=database,
                inventory=PostgresInventory(database, on_commit=lambda: None),
            )
            assert await play(real, script) == expected

    asyncio.run(both())


async def _empty(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET session_replication_role = replica")
    for table in (
        *("allocation_events", "allocation_devices", "allocation_containers", "allocations"),
        *("device_health_events", "devices", "nodes", "outbox"),
    ):
        await connection.execute(f"DELETE FROM {table}")
    await connection.close()


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
            with pytest.raises(Conflict, match="began before the quota are still running"):
                await quotas.set_limits("team", {MEMORY: 100})
        assert await row(database) == (100, 100)

    await quotas.set_limits("team", {MEMORY: 100})
    assert await row(database) == (100, 60)
