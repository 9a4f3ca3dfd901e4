"""The ledger through SQLAlchemy: for migrations and commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from hamicommon.ledger.connection import connect
from hamicommon.settings import PostgresSettings


@asynccontextmanager
async def open_engine(
    settings: PostgresSettings, *, command_timeout_s: float | None = None
) -> AsyncIterator[AsyncEngine]:
    """A SQLAlchemy engine without a pool; see `connect` for `command_timeout_s`.

    Its connections raise what `hamicommon.ledger.connection.connect` does.
    """
    # SQLAlchemy would take the DSN apart itself, and hand asyncpg parameters of libpq's (`sslmode`)
    # that it knows in a DSN alone.
    creator = partial(connect, settings, command_timeout_s=command_timeout_s)
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=creator)
    try:
        yield engine
    finally:
        await engine.dispose()
