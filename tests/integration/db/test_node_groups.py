"""Groups of nodes in the ledger: written for the nodes that it knows, and answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from hami_scheduler.adapters.postgres.inventory.store import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hamicommon.domain.ids import NodeName
from hamicommon.ledger.database import open_database
from hamicommon.ledger.questions import answer
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from bench.pages.ledger import fill

pytestmark = pytest.mark.integration


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

        known = await inventory.set_groups(
            {NodeName("n0001"): "rack-7", NodeName("n0002"): None, NodeName("cpu-only"): "rack-7"}
        )
        cards = await PostgresQueries(database).devices()

    assert sorted(known) == ["n0001", "n0002"]
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
        await inventory.set_groups({NodeName("n0001"): "rack-7"})
        before = await db.fetchval("SELECT ctid::text FROM nodes")
        await inventory.set_groups({NodeName("n0001"): "rack-7"})
        same = await db.fetchval("SELECT ctid::text FROM nodes")
        await inventory.set_groups({NodeName("n0001"): None})

    assert same == before
    assert await db.fetchval("SELECT count(*) FROM nodes WHERE node_group IS NULL") == 1
