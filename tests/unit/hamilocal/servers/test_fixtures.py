"""The session fixtures give each test servers that look new."""

import asyncpg
import nats
import pytest
import redis

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("turn", [1, 2])
async def test_every_test_gets_a_database_without_tables(
    empty_postgres_dsn: str, turn: int
) -> None:
    connection = await asyncpg.connect(empty_postgres_dsn)
    try:
        assert not await connection.fetch("SELECT 1 FROM pg_tables WHERE schemaname = 'public'")
        await connection.execute("CREATE TABLE left_behind (turn int)")
    finally:
        await connection.close()


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_redis(redis_url: str, turn: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left-behind", turn)


@pytest.mark.parametrize("turn", [1, 2])
async def test_every_test_gets_a_bus_without_streams(nats_url: str, turn: int) -> None:
    client = await nats.connect(nats_url)
    try:
        stream = client.jetstream()
        assert await stream.streams_info() == []
        await stream.add_stream(name="LEFT_BEHIND", subjects=["left.behind"])
    finally:
        await client.close()
