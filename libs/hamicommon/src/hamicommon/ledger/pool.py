"""Open the pool of connections with which every service reaches Postgres.

The metrics service uses it directly; its pages and questions, and the scheduler, through `Database`
(`database.py`). It sets a connection's encryption (by the DSN), time-outs and name in
`pg_stat_activity`, and JSON and text as Python values. Migrations and commands open one connection
(`connection.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import orjson

from hamicommon.errors import Unavailable
from hamicommon.ledger.connection import Connection, why_not
from hamicommon.settings import PostgresSettings

# A guarded UPDATE takes well under a millisecond; who waits longer has met a stuck transaction.
LOCK_TIMEOUT_MS = 200
# A transaction whose client died (or was paused) must not hold rows for long.
IDLE_IN_TRANSACTION_MS = 5000


@asynccontextmanager
async def open_pool(
    settings: PostgresSettings, application: str, *, jit: bool = True
) -> AsyncIterator[asyncpg.Pool]:
    """Open the pool; if the server is unavailable, the first statement fails, not this call.

    `application` is what `pg_stat_activity` shows; `jit` is off where statements are so short that
    their plans never profit from compilation. A connection that can't be made raises Unavailable
    with the sentence of `hamicommon.ledger.connection.why_not`, or an error of the driver.
    """

    async def connect(*args: Any, **how: Any) -> Any:
        try:
            return await asyncpg.connect(*args, **how)
        except TimeoutError:
            raise
        except (OSError, asyncpg.ClientConfigurationError) as exc:
            # Also where the DSN is to blame: a file that it names may be mounted a moment later.
            raise Unavailable(str(why_not(settings, exc))) from exc

    pool = asyncpg.create_pool(
        settings.dsn.get_secret_value(),
        connect=connect,
        # asyncpg opens the minimum immediately and fails if it can't; these are opened on demand.
        min_size=0,
        max_size=settings.pool_max,
        timeout=settings.connect_timeout_s,
        command_timeout=settings.command_timeout_s,
        init=_prepare,
        connection_class=StorableConnection,
        # Nothing leaves session state behind, so the reset's extra round trip buys nothing.
        reset=_keep,
        server_settings={**_session_settings(application), **({} if jit else {"jit": "off"})},
    )
    await pool
    try:
        yield pool
    finally:
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await pool.close()
        except TimeoutError:
            pool.terminate()


def _session_settings(application: str) -> dict[str, str]:
    return {
        "application_name": application,
        "lock_timeout": str(LOCK_TIMEOUT_MS),
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    }


async def _prepare(connection: Connection) -> None:
    await connection.set_type_codec(
        "jsonb",
        schema="pg_catalog",
        format="binary",
        # The binary form of jsonb is one version byte (1), then the text.
        encoder=lambda value: b"\x01" + storable_json(value),
        decoder=lambda data: orjson.loads(data[1:]),
    )


async def _keep(connection: Connection) -> None:
    del connection


_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def storable_json(value: object) -> bytes:
    """Return JSON that a jsonb column can store."""
    data = orjson.dumps(value)
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", data) if rb"\u0000" in data else data


def storable(value: Any) -> Any:
    """Return a parameter that Postgres can store; texts in lists and tuples are converted, too."""
    if isinstance(value, str):
        return value.replace("\0", _REPLACEMENT) if "\0" in value else value
    if isinstance(value, list | tuple):
        return type(value)(storable(one) for one in value)
    return value


class StorableConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """Connection that converts parameters to what Postgres can store.

    A user who may create a pod or write on a node chooses text that ends up in the ledger: reasons,
    decisions, names of cards. A NUL in it is replaced by U+FFFD; the statement succeeds, and no
    loop ends because of a user's text.
    """

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        """See asyncpg."""
        return str(await super().execute(query, *map(storable, args), timeout=timeout))

    async def executemany(
        self, command: str, args: Iterable[Iterable[Any]], *, timeout: float | None = None
    ) -> None:
        """See asyncpg."""
        # Whole, because what logs queries looks at them after the driver.
        rows = [tuple(map(storable, row)) for row in args]
        await super().executemany(command, rows, timeout=timeout)

    async def copy_records_to_table(
        self, table_name: str, *, records: Iterable[Iterable[Any]], **how: Any
    ) -> str:
        """See asyncpg."""
        rows = (tuple(map(storable, row)) for row in records)
        return str(await super().copy_records_to_table(table_name, records=rows, **how))

    async def fetch(self, query: str, *args: Any, **how: Any) -> list[Any]:
        """See asyncpg."""
        return list(await super().fetch(query, *map(storable, args), **how))

    async def fetchrow(self, query: str, *args: Any, **how: Any) -> Any:
        """See asyncpg."""
        return await super().fetchrow(query, *map(storable, args), **how)

    async def fetchval(self, query: str, *args: Any, **how: Any) -> Any:
        """See asyncpg."""
        return await super().fetchval(query, *map(storable, args), **how)
