"""Every connection of a service ends what it left open, whichever pool made it."""

from __future__ import annotations

from hamicommon.ledger.database import open_database
from hamicommon.ledger.engine import open_pool
from hamicommon.settings import PostgresSettings

SETTINGS = ("lock_timeout", "idle_in_transaction_session_timeout", "application_name")
SHOW = "SELECT name, setting FROM pg_settings WHERE name = ANY($1)"


async def test_both_pools_bound_waits_for_locks_and_idle_transactions(postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=postgres_dsn)
    expected = {
        "lock_timeout": "200",
        "idle_in_transaction_session_timeout": "5000",
        "application_name": "test",
    }
    async with (
        open_database(settings, application="test") as database,
        open_pool(settings, "test") as pool,
    ):
        assert dict(await database.fetch(SHOW, SETTINGS)) == expected
        assert dict(await pool.fetch(SHOW, SETTINGS)) == expected
