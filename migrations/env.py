"""Runs the migrations over one asynchronous connection; the DSN is HAMI_POSTGRES_DSN."""

from __future__ import annotations

import asyncio

from alembic import context
from hamicommon.db.engine import open_engine
from hamicommon.db.tables import metadata
from hamicommon.settings import PostgresSettings
from sqlalchemy import Connection


def include_name(name: str | None, kind: str, _parents: object) -> bool:
    """Partitions are children of their table, not tables of their own."""
    return kind != "table" or name is None or name in metadata.tables


def run(connection: Connection) -> None:
    """Applies what is asked for, all of it in one transaction."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=include_name,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    """Opens the connection and runs."""
    settings = context.config.attributes.get("settings") or PostgresSettings()
    async with open_engine(settings) as engine, engine.begin() as connection:
        await connection.run_sync(run)


asyncio.run(main())
