"""Every connection of a service is made in one way, whichever service makes it."""

import ast
import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hamicommon.errors import Unavailable
from hamicommon.ledger.database import open_database
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

PROJECT = Path(__file__).parents[3]
SETTINGS = ("lock_timeout", "idle_in_transaction_session_timeout", "application_name")
SHOW = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"
DRIVERS = {
    "create_pool": {"libs/hamicommon/src/hamicommon/ledger/pool.py"},
    "create_async_engine": {"libs/hamicommon/src/hamicommon/ledger/migrations/session.py"},
    "connect": {
        "libs/hamicommon/src/hamicommon/ledger/connection.py",
        "libs/hamicommon/src/hamicommon/ledger/pool.py",
        # A client's: it speaks to a server that may be another version's.
        "libs/hamictl/src/hamictl/commands/query.py",
    },
}
"""By the drivers' functions: the modules that may call them."""


@asynccontextmanager
async def both(settings: PostgresSettings) -> AsyncIterator[tuple[object, ...]]:
    async with (
        open_database(settings, application="test") as database,
        open_pool(settings, "test") as pool,
    ):
        yield database.fetch, pool.fetch


async def test_both_pools_bound_waits_and_speak_json_alike(postgres_dsn: str) -> None:
    expected = {
        "lock_timeout": "200",
        "idle_in_transaction_session_timeout": "5000",
        "application_name": "test",
    }
    async with both(PostgresSettings(dsn=SecretStr(postgres_dsn))) as ways:
        for fetch in ways:
            assert dict(await fetch(SHOW, SETTINGS)) == expected
            assert [*(await fetch("SELECT $1::jsonb", {"a": ["b\0"]}))[0]] == [{"a": ["b\ufffd"]}]


async def test_both_pools_name_the_file_that_a_dsn_lacks_at_the_first_statement(
    postgres_dsn: str, tmp_path: Path
) -> None:
    wanted = f"sslrootcert={tmp_path}/gone.crt: there is no such file"
    dsn = f"{postgres_dsn}?sslmode=verify-full&sslrootcert={tmp_path}/gone.crt"
    async with both(PostgresSettings(dsn=SecretStr(dsn))) as ways:
        for fetch in ways:
            with pytest.raises(Unavailable, match=wanted):
                await fetch("SELECT 1")


def calls_of(module: Path) -> set[str]:
    """The functions that open connections, as the module calls them."""
    called = (n.func for n in ast.walk(ast.parse(module.read_text())) if isinstance(n, ast.Call))
    return {
        found.attr if isinstance(found, ast.Attribute) else found.id
        for found in called
        if (isinstance(found, ast.Attribute) and ast.unparse(found.value) == "asyncpg")
        or (isinstance(found, ast.Name) and found.id == "create_async_engine")
    }


def test_the_drivers_are_called_in_one_module_each() -> None:
    found: dict[str, set[str]] = {name: set() for name in DRIVERS}
    for module in PROJECT.glob("*/*/src/**/*.py"):
        for name in calls_of(module) & found.keys():
            found[name].add(str(module.relative_to(PROJECT)))

    assert found == DRIVERS


PID = "SELECT pg_backend_pid() AS pid"


async def test_callers_at_once_take_turns_on_the_one_connection(postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=postgres_dsn, pool_max=1)
    async with open_database(settings, application="turns") as database:
        first = (await database.fetchrow(PID))["pid"]
        found = await asyncio.gather(*(database.fetchrow(PID) for _ in range(5)))
        async with database.transaction() as connection:
            inside = await connection.fetchval("SELECT pg_backend_pid()")

    assert {row["pid"] for row in found} == {first}
    assert inside == first


async def test_a_connection_that_the_server_ended_is_replaced(postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=postgres_dsn, pool_max=1)
    async with (
        open_database(settings, application="ended") as database,
        open_database(settings, application="other") as other,
    ):
        ended = (await database.fetchrow(PID))["pid"]
        await other.fetch("SELECT pg_terminate_backend($1)", ended)
        # Its end may not have come here yet; then one statement meets it.
        with contextlib.suppress(Unavailable):
            await database.fetchrow(PID)

        assert (await database.fetchrow(PID))["pid"] != ended
