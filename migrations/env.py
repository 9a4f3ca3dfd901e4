"""Run Alembic's migrations over the caller's connection, or a new one by HAMI_POSTGRES_DSN.

Each migration is a separate transaction, so that it can build indexes without stopping writers
(`autocommit_block`) and an interrupted run continues where it stopped. Concurrent runs take turns.
"""

from __future__ import annotations

import asyncio
import time

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from hamicommon.ledger.migrations import revisions, rights
from hamicommon.ledger.migrations.session import open_engine
from hamicommon.ledger.tables import metadata
from hamicommon.settings import PostgresSettings
from sqlalchemy import Connection, text

# An arbitrary number that no other lock in this database uses.
TURN = 4_210_777
TURN_PAUSE_S = 0.2
# A statement that waits for a table's lock makes all later ones on the table wait too, so the wait
# must be short; `hamicommon.ledger.migrations.upgrade.upgrade` retries.
LOCK_TIMEOUT_MS = 500
CALLED = """
INSERT INTO operator_calls (username, source, verb, object, outcome, ended_at)
VALUES (session_user, 'database', 'migrate', :object, 'done', now())
"""


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Return whether Alembic shall see a table: partitions are parts of their table."""
    return kind != "table" or name is None or name in metadata.tables


def run(connection: Connection) -> None:
    """Run the requested migrations."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=include_name,
        compare_server_default=True,
        transaction_per_migration=True,
        on_version_apply=grant,
    )
    with context.begin_transaction():
        context.run_migrations()


def grant(*, ctx: MigrationContext, step: MigrationInfo, **_more: object) -> None:
    """Grant rights within the migration's transaction.

    New objects are never visible without their rights, or without a row that names the caller.
    """
    assert ctx.connection is not None
    ctx.connection.execute(text(rights.grants()))
    if ctx.connection.scalar(text("SELECT to_regclass('public.operator_calls') IS NOT NULL")):
        what = "upgrade" if step.is_upgrade else "downgrade"
        ctx.connection.execute(text(CALLED), {"object": f"{what} {step.up_revision_id}"})


def take_turn(connection: Connection) -> None:
    """Wait for another run's end, outside a transaction, which index builds would wait for.

    The wait has no limit, because an index of a large table takes hours; the lock ends with its
    run.
    """
    while not connection.scalar(text(f"SELECT pg_try_advisory_lock({TURN})")):
        connection.commit()
        time.sleep(TURN_PAUSE_S)
    connection.execute(text(f"SET lock_timeout = {LOCK_TIMEOUT_MS}"))
    if connection.scalar(text("SELECT to_regclass('public.alembic_version') IS NOT NULL")):
        connection.execute(text(revisions.SPLIT))
    connection.commit()


def end_turn(connection: Connection) -> None:
    """Let the next run begin, if the connection stays open; closing it does the same."""
    connection.execute(text("RESET lock_timeout"))
    connection.execute(text("SELECT pg_advisory_unlock_all()"))
    connection.commit()


def run_in_turn(connection: Connection) -> None:
    """Run the requested migrations while no other run does."""
    take_turn(connection)
    run(connection)
    connection.commit()


async def main() -> None:
    """Open a connection and run."""
    settings = context.config.attributes.get("settings") or PostgresSettings()
    async with open_engine(settings) as engine, engine.connect() as connection:
        await connection.run_sync(run_in_turn)


given: Connection | None = context.config.attributes.get("connection")
if given is None:
    asyncio.run(main())
else:
    run_in_turn(given)
    end_turn(given)
