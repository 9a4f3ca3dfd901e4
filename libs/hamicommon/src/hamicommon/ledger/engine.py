"""Connections to the ledger: a raw asyncpg pool for the hot path, an engine for everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import orjson
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from hamicommon.ledger.connection import CONNECT_ERRORS, connect, why_not
from hamicommon.ledger.database import session_settings
from hamicommon.ledger.storable import StorableConnection, storable_json
from hamicommon.settings import PostgresSettings


@asynccontextmanager
async def open_engine(settings: PostgresSettings) -> AsyncIterator[AsyncEngine]:
    """A SQLAlchemy engine without a pool, for migrations and commands.

    Its connections raise what `hamicommon.ledger.connection.connect` does.
    """
    # SQLAlchemy would take the DSN apart itself, and hand asyncpg parameters of libpq's (`sslmode`)
    # that it knows in a DSN alone.
    engine = create_async_engine(
        "postgresql+asyncpg://", poolclass=NullPool, async_creator=partial(connect, settings)
    )
    try:
        yield engine
    finally:
        await engine.dispose()


async def _prepare(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            encoder=lambda value: storable_json(value).decode(),
            decoder=orjson.loads,
        )


@asynccontextmanager
async def open_pool(
    settings: PostgresSettings, application_name: str, *, read_only: bool = False
) -> AsyncIterator[asyncpg.Pool]:
    """A pool of raw connections; JSON columns are Python values.

    Raises: see `hamicommon.ledger.connection.connect`.
    """
    try:
        pool = await asyncpg.create_pool(
            settings.dsn.get_secret_value(),
            min_size=settings.pool_min,
            max_size=settings.pool_max,
            timeout=settings.connect_timeout_s,
            command_timeout=settings.command_timeout_s,
            init=_prepare,
            connection_class=StorableConnection,
            server_settings={
                **session_settings(application_name),
                "default_transaction_read_only": "on" if read_only else "off",
            },
        )
    except CONNECT_ERRORS as exc:
        raise why_not(settings, exc) from exc
    try:
        yield pool
    finally:
        pool.terminate()
