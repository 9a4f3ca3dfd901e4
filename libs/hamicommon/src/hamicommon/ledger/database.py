"""PostgreSQL through asyncpg: one pool per process, and driver errors turned into our own.

`Database.connection()` and `.transaction()` are how every adapter reaches the ledger. READ
COMMITTED is enough, because every write is guarded by its own WHERE; a lock that is not granted
within `LOCK_TIMEOUT_MS` is a lost race, not a reason to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import orjson

from hamicommon.errors import Conflict, Unavailable
from hamicommon.fault_injection import Faults
from hamicommon.ledger.connection import why_not
from hamicommon.ledger.constraints import error_of
from hamicommon.ledger.migrations.revisions import NEEDED
from hamicommon.ledger.storable import StorableConnection, storable_json
from hamicommon.settings import PostgresSettings

logger = logging.getLogger(__name__)

# A guarded UPDATE takes well under a millisecond; who waits longer has met a stuck transaction.
LOCK_TIMEOUT_MS = 200
# A transaction whose client died (or was paused) must not hold rows for long.
IDLE_IN_TRANSACTION_MS = 5000

Connection: TypeAlias = Any
"""An `asyncpg.Connection` (which has no types); jsonb comes and goes as Python values."""


DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # Raised instead of a lost connection when it ends between two statements.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""What a server that is away, restarting or overloaded makes asyncpg raise."""

SCHEMA_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
)
"""A migration that has not run yet, or not to its end: it is waited for, like a server."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns driver errors into the error tree.

    Raises: what `hamicommon.ledger.constraints` has for the constraint, Conflict (lock not granted,
    deadlock), Unavailable.
    """
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as exc:
        name, detail = getattr(exc, "constraint_name", None), getattr(exc, "detail", None)
        raise error_of(name or "", detail=detail or "", cause=str(exc)) from exc
    except (asyncpg.LockNotAvailableError, asyncpg.TransactionRollbackError) as exc:
        raise Conflict(f"ledger: lost a race: {exc}") from exc
    except SCHEMA_ERRORS as exc:
        raise Unavailable(
            f"the ledger's schema is not this version's ({exc}); `hamictl db check` has the details"
        ) from exc
    except (asyncpg.SyntaxOrAccessError, asyncpg.DataError):
        # A mistake of ours, not a state of the server.
        raise
    except DRIVER_ERRORS as exc:
        what = str(exc) or "no answer in time"
        raise Unavailable(f"Postgres is not available: {what}") from exc


class Database:
    """The pool; every wait on it is bounded by the settings' time-outs."""

    def __init__(
        self, pool: asyncpg.Pool, settings: PostgresSettings, faults: Faults | None = None
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._faults = faults

    @property
    def dsn(self) -> str:
        """Where it is, for the few who need a connection of their own (LISTEN)."""
        return self._settings.dsn.get_secret_value()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside a transaction: each statement commits by itself.

        Raises: see `translated`.
        """
        with translated():
            connection = await self._acquire()
            try:
                yield connection
            finally:
                await self._pool.release(connection)

    async def _acquire(self) -> Connection:
        """Raises: Unavailable when all connections of this process stay in use or no new one can be
        made, driver errors.
        """
        wait_s = self._settings.connect_timeout_s
        try:
            return await self._pool.acquire(timeout=wait_s)
        except TimeoutError as exc:
            most = self._settings.pool_max
            if self._pool.get_size() < most or self._pool.get_idle_size():
                raise
            raise Unavailable(
                f"all {most} connections of this process to Postgres are in use, and none came "
                f"free within {wait_s:g} s (HAMI_POSTGRES_POOL_MAX)"
            ) from exc
        except (OSError, asyncpg.ClientConfigurationError) as exc:
            # Also where the DSN is to blame: a file that it names may be mounted a moment later.
            raise Unavailable(str(why_not(self._settings, exc))) from exc

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A connection inside a transaction, committed at the end of the block.

        Raises: see `translated`.
        """
        async with self.connection() as connection, connection.transaction():
            yield connection
            if self._faults is not None:
                await self._faults.hit("postgres.commit")

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Rows of one statement outside a transaction.

        Raises: see `translated`.
        """
        # As `connection`, without the generators: a pod's way asks ten times.
        with translated():
            connection = await self._acquire()
            try:
                return list(await connection.fetch(query, *args))
            finally:
                await self._pool.release(connection)

    async def fetchrow(self, query: str, *args: object) -> Any:
        """The first row of one statement, or None.

        Raises: see `translated`.
        """
        with translated():
            connection = await self._acquire()
            try:
                return await connection.fetchrow(query, *args)
            finally:
                await self._pool.release(connection)

    async def ping(self) -> None:
        """Raises: Unavailable when the ledger does not answer, or lacks what this version needs."""
        row = await self.fetchrow("SELECT max(version_num)::text AS newest FROM alembic_version")
        if (row["newest"] or "") < NEEDED:
            raise Unavailable(
                f"the ledger's schema is at {row['newest']}, and this version needs {NEEDED}: "
                "`hamictl db upgrade --before-rollout`, or the Job of the manifests, brings it"
            )


def session_settings(application: str) -> dict[str, str]:
    """What holds for every connection of a service; `application` shows in `pg_stat_activity`."""
    return {
        "application_name": application,
        "lock_timeout": str(LOCK_TIMEOUT_MS),
        "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
    }


@asynccontextmanager
async def open_database(
    settings: PostgresSettings, *, application: str, faults: Faults | None = None
) -> AsyncIterator[Database]:
    """Opens the pool; a server that is away is met by the first statement, not here.

    `application` is what `pg_stat_activity` shows.
    """
    pool = asyncpg.create_pool(
        settings.dsn.get_secret_value(),
        # asyncpg opens the minimum at once and fails if it can't; connections are made on demand.
        min_size=0,
        max_size=settings.pool_max,
        timeout=settings.connect_timeout_s,
        command_timeout=settings.command_timeout_s,
        init=_prepare,
        connection_class=StorableConnection,
        # Nothing here leaves session state behind, so the reset's extra round trip buys nothing.
        reset=_keep,
        server_settings={
            **session_settings(application),
            # Plans of these short statements never profit from compilation.
            "jit": "off",
        },
    )
    await pool
    try:
        yield Database(pool, settings, faults)
    finally:
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await pool.close()
        except TimeoutError:
            pool.terminate()


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
