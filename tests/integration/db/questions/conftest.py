"""Ledgers that the tests of questions share: a filled one, and one that stays empty."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from tests.integration.db.questions.four_days import Filled, four_days
from tests.servers import Databases, migrate


@pytest.fixture(scope="session")
def filled(databases: Databases) -> Iterator[Filled]:
    with four_days(databases) as found:
        yield found


@pytest.fixture
async def reader(filled: Filled) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled.dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def empty_dsn(databases: Databases) -> Iterator[str]:
    """An empty ledger; a test that writes into it removes its rows."""
    with databases.database() as dsn:
        migrate(dsn)
        yield dsn
