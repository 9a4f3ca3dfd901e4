"""The migrations make exactly the tables of `hamicommon.db.tables`; what guards history holds."""

from pathlib import Path

import asyncpg
import pytest
from hamicommon.db import schema
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from tests.servers import psql

MIGRATIONS = Path(__file__).parents[3] / "migrations"


def test_upgrade_equals_the_tables_and_downgrade_leaves_nothing(empty_postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=SecretStr(empty_postgres_dsn))

    schema.upgrade(settings, MIGRATIONS)
    schema.check(settings, MIGRATIONS)
    schema.downgrade(settings, MIGRATIONS)

    left = psql(
        empty_postgres_dsn,
        "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relname NOT LIKE 'alembic%'",
    )
    assert left == "0"


def test_every_revision_can_be_taken_back_and_applied_again(empty_postgres_dsn: str) -> None:
    settings = PostgresSettings(dsn=SecretStr(empty_postgres_dsn))
    revisions = sorted(path.name[:4] for path in (MIGRATIONS / "versions").glob("*.py"))

    for revision in revisions:
        schema.upgrade(settings, MIGRATIONS, revision)
        schema.downgrade(settings, MIGRATIONS, "-1")
        schema.upgrade(settings, MIGRATIONS, revision)

    schema.check(settings, MIGRATIONS)


async def test_history_cannot_be_rewritten(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        await connection.execute("INSERT INTO nodes (name) VALUES ('n')")
        allocation = await connection.fetchval(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state)"
            " VALUES (gen_random_uuid(), 'u', 'ns', 'p', 1, 'n', 'reserved') RETURNING id"
        )
        await connection.execute(
            "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)"
            " VALUES ('u', 1, $1, 'reserved')",
            allocation,
        )

        for statement in (
            "UPDATE allocation_events SET reason = 'x'",
            "DELETE FROM allocation_events",
            "TRUNCATE allocation_events",
        ):
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_decision_of_any_day_finds_a_partition(postgres_dsn: str) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        for at in ("1999-01-01", "now", "2999-01-01"):
            await connection.execute(
                "INSERT INTO decisions (at, pod_uid, namespace, pod_name, outcome)"
                f" VALUES ('{at}', 'u', 'ns', 'p', 'refused')"
            )

        assert await connection.fetchval("SELECT count(*) FROM decisions") == 3
        assert await connection.fetchval("SELECT count(*) FROM decisions_default") == 2
    finally:
        await connection.close()
