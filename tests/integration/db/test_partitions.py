"""Partitions of the ledger by day, and the groups that nodes are in."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta

import asyncpg
import pytest
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hamicommon.domain.ids import NodeName
from hamicommon.ledger import partitions
from hamicommon.ledger.database import open_database
from hamicommon.ledger.partitions import AHEAD_DAYS, days_of, keep_partitions, make_days
from hamicommon.ledger.questions import answer
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from bench.pages.ledger import fill
from tests.waiting import Unhurried

TODAY = datetime.now(UTC).date()
DECISION = (
    "INSERT INTO decisions (at, pod_uid, namespace, pod_name, outcome)"
    " VALUES ($1, 'u', 'ns', 'p', 'refused') RETURNING id"
)


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(postgres_dsn)
    yield opened
    await opened.close()


def noon(days_from_today: int) -> datetime:
    return datetime(TODAY.year, TODAY.month, TODAY.day, 12, tzinfo=UTC) + timedelta(
        days=days_from_today
    )


async def keep(connection: asyncpg.Connection, keep_days: int, today: date = TODAY):
    return await keep_partitions(connection, "decisions", "at", today=today, keep_days=keep_days)


async def test_the_days_to_come_are_made_once(connection: asyncpg.Connection) -> None:
    first, second = await keep(connection, 14), await keep(connection, 14)

    ahead = [TODAY + timedelta(days=n) for n in range(AHEAD_DAYS + 1)]
    assert await days_of(connection, "decisions") == ahead
    assert set(first.made) <= set(ahead)
    assert second.made == second.dropped == ()


async def test_a_row_of_any_day_is_taken(connection: asyncpg.Connection) -> None:
    for at in (noon(-9000), noon(0), noon(9000)):
        await connection.execute(DECISION, at)

    assert await connection.fetchval("SELECT count(*) FROM decisions") == 3
    assert await connection.fetchval("SELECT count(*) FROM decisions_default") == 2


async def test_rows_that_were_before_their_day_move_into_it_as_they_are(
    connection: asyncpg.Connection,
) -> None:
    early = await connection.fetchval(DECISION, noon(AHEAD_DAYS + 1))

    await keep(connection, 14, today=TODAY + timedelta(days=1))

    assert await connection.fetchval("SELECT count(*) FROM decisions_default") == 0
    assert await connection.fetchval("SELECT id FROM decisions WHERE at = $1", noon(4)) == early


@pytest.mark.parametrize(("keep_days", "left"), [(2, [-2, -1, 0]), (0, [0]), (14, [-3, -2, -1, 0])])
async def test_days_older_than_asked_for_are_dropped_whole(
    connection: asyncpg.Connection, keep_days: int, left: list[int]
) -> None:
    await make_days(connection, "decisions", "at", [TODAY + timedelta(days=-n) for n in (1, 2, 3)])
    for day in range(-3, 1):
        await connection.execute(DECISION, noon(day))
    await connection.execute(DECISION, noon(-9000))

    kept = await keep(connection, keep_days)

    rows = await connection.fetch("SELECT at FROM decisions ORDER BY at")
    assert [row["at"] for row in rows] == [noon(day) for day in left]
    assert kept.dropped == tuple(
        TODAY + timedelta(days=day) for day in range(-3, 1) if day not in left
    )


async def test_a_day_that_somebody_reads_is_dropped_the_next_time(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    """Waiting for a reader would make every writer wait: the round ends after its 200 ms."""
    yesterday = TODAY - timedelta(days=1)
    await make_days(connection, "decisions", "at", [yesterday])
    reader = await asyncpg.connect(postgres_dsn)
    try:
        async with reader.transaction():
            await reader.fetch("SELECT FROM decisions")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await keep(connection, 0)
            assert yesterday in await days_of(connection, "decisions")
        assert (await keep(connection, 0)).dropped == (yesterday,)
    finally:
        await reader.close()


async def test_writers_do_not_wait_while_days_are_made_and_dropped(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    days = [TODAY - timedelta(days=n) for n in range(1, 21)]
    await make_days(connection, "decisions", "at", days)
    writer = await asyncpg.connect(postgres_dsn)
    slowest_s, dropped = 0.0, Unhurried()
    try:
        dropping = asyncio.create_task(keep(connection, 0))
        while not dropping.done():
            started = asyncio.get_running_loop().time()
            await writer.execute(DECISION, noon(0))
            slowest_s = max(slowest_s, asyncio.get_running_loop().time() - started)
        assert len((await dropping).dropped) == len(days)
    finally:
        await writer.close()

    # A drop holds its lock for milliseconds; a second would be a queue behind it.
    assert slowest_s < 1.0 * dropped.slowdown


async def test_a_day_that_another_keeper_has_dropped_in_between_is_not_dropped_again(
    connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_days(connection, "decisions", "at", [TODAY - timedelta(days=1)])
    seen = await days_of(connection, "decisions")

    async def as_seen_before(*_: object) -> list[date]:
        return seen

    assert (await keep(connection, 0)).dropped == (TODAY - timedelta(days=1),)
    monkeypatch.setattr(partitions, "days_of", as_seen_before)
    assert (await keep(connection, 0)).dropped == ()


async def test_many_keepers_at_once_do_it_once(
    connection: asyncpg.Connection, postgres_dsn: str
) -> None:
    days = [TODAY - timedelta(days=n) for n in (1, 2, 3)]
    await make_days(connection, "decisions", "at", days)
    others = [await asyncpg.connect(postgres_dsn) for _ in range(4)]
    try:
        kept = await asyncio.gather(*(keep(one, 0) for one in others), return_exceptions=True)
    finally:
        for one in others:
            await one.close()
    await keep(connection, 0)

    done = [day for one in kept if not isinstance(one, BaseException) for day in one.dropped]
    assert len(done) == len(set(done))
    assert await days_of(connection, "decisions") == [
        TODAY + timedelta(days=n) for n in range(AHEAD_DAYS + 1)
    ]


@pytest.fixture
async def db(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


async def test_a_group_is_written_where_the_node_is_known_and_answered_with_its_cards(
    postgres_dsn: str, db: asyncpg.Connection
) -> None:
    await fill(db, nodes=2, cards=2, pods=2, waiting=1)
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as database:
        inventory = PostgresInventory(database, on_commit=lambda: None)

        for name, group in (("n0001", "rack-7"), ("n0002", None), ("cpu-only", "rack-7")):
            await inventory.set_node(NodeName(name), group=group, unschedulable=False)
        cards = await PostgresQueries(database).devices()

    assert {row["node"]: row["node_group"] for row in cards} == {"n0001": "rack-7", "n0002": None}
    rows = (await answer(db, "nodes", {})).rows
    assert {row["node"]: row["node_group"] for row in rows} == {"n0001": "rack-7", "n0002": None}


async def test_a_group_that_is_written_again_makes_no_new_version_of_the_row(
    postgres_dsn: str, db: asyncpg.Connection
) -> None:
    await fill(db, nodes=1, cards=1, pods=1, waiting=1)
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as database:
        inventory = PostgresInventory(database, on_commit=lambda: None)
        await inventory.set_node(NodeName("n0001"), group="rack-7", unschedulable=False)
        before = await db.fetchval("SELECT ctid::text FROM nodes")
        await inventory.set_node(NodeName("n0001"), group="rack-7", unschedulable=False)
        same = await db.fetchval("SELECT ctid::text FROM nodes")
        await inventory.set_node(NodeName("n0001"), group=None, unschedulable=False)

    assert same == before
    assert await db.fetchval("SELECT count(*) FROM nodes WHERE node_group IS NULL") == 1
