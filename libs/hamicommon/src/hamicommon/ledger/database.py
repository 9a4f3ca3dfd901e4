"""Pool of connections to PostgreSQL, with driver errors translated into our own.

The scheduler's adapters reach the ledger through `Database.connection()` and `.transaction()`. READ
COMMITTED is enough, because every write is guarded by its own WHERE; a lock that is not granted
within `pool.LOCK_TIMEOUT_MS` is a lost race, not a reason to wait.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.fault_injection import Faults
from hamicommon.ledger.connection import Connection, connect
from hamicommon.ledger.constraints import error_of
from hamicommon.ledger.migrations.revisions import NEEDED
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings

logger = logging.getLogger(__name__)

# Handing a connection back to asyncpg's pool and taking it again costs as much as a short statement
# does (a task, a shield, two time-outs), so this many stay at hand between two statements.
AT_HAND = 8
# The pool sees each of them again after so many statements, and may replace it.
STATEMENTS_AT_HAND = 1000

DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # Raised instead of a lost connection when it ends between two statements.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Errors of asyncpg if the server is unavailable, restarting or overloaded."""

SCHEMA_ERRORS = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedObjectError,
)
"""Errors of a schema whose migration has not run yet; the caller waits as for a server."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Translate driver errors into those of `hamicommon.errors`.

    Raises: what `hamicommon.ledger.constraints` has for the constraint, Conflict (lock not granted,
    deadlock), InvalidRequest (a value too long), Unavailable.
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
            f"the ledger's schema does not match this version ({exc}); `hamictl db "
            "check` has the details"
        ) from exc
    except asyncpg.SequenceGeneratorLimitExceededError as exc:
        # The scheduler's reconciler lets the sequence continue.
        raise Unavailable(
            f"a sequence of the ledger is exhausted ({exc}); the scheduler repairs it soon"
        ) from exc
    except asyncpg.ProgramLimitExceededError as exc:
        # The value's, not the server's: such as a name that is longer than a row of an index.
        raise InvalidRequest(f"the ledger can't store a value as long as this: {exc}") from exc
    except (asyncpg.SyntaxOrAccessError, asyncpg.DataError):
        # A mistake of ours, not a state of the server.
        raise
    except DRIVER_ERRORS as exc:
        what = str(exc) or "no answer in time"
        raise Unavailable(f"Postgres is not available: {what}") from exc


class Database:
    """Pool of connections; the settings' time-outs bound every wait."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        settings: PostgresSettings,
        faults: Faults | None = None,
        *,
        application: str = "",
    ) -> None:
        self._application = application
        self._pool = pool
        self._settings = settings
        self._faults = faults
        self._at_hand: list[Connection] = []
        """Out of the pool and idle, the one that was used last at the end."""
        self._waiting = 0
        self._closing = False
        self._statements: Counter[int] = Counter()
        """Statements of each connection since the pool has it."""

    async def connect(self) -> Connection:
        """Open a connection outside the pool, for long use (LISTEN).

        Raises: see `hamicommon.ledger.connection.connect`.
        """
        return await connect(self._settings, application=self._application)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield a connection outside a transaction: each statement commits separately.

        Raises: see `translate_errors`.
        """
        with translate_errors():
            connection, well = await self._acquire(), False
            try:
                yield connection
                well = True
            finally:
                await self._release(connection, well=well)

    async def close(self) -> None:
        """Return idle connections to the pool, so that it can close."""
        self._closing = True
        while self._at_hand:
            await self._give_back(self._at_hand.pop())

    async def _release(self, connection: Connection, *, well: bool) -> None:
        """Return a connection to the pool; if not `well`, after cancelling its failed statement."""
        self._statements[id(connection)] += 1
        tired = self._statements[id(connection)] >= STATEMENTS_AT_HAND
        enough = self._closing or len(self._at_hand) >= AT_HAND
        if not well or self._waiting or tired or enough:
            await self._give_back(connection)
        else:
            self._at_hand.append(connection)

    async def _give_back(self, connection: Connection) -> None:
        self._statements.pop(id(connection), None)
        await self._pool.release(connection)

    async def _acquire(self) -> Connection:
        """Take a connection from the pool.

        Raises: Unavailable when all connections of this process stay in use or no new one can be
        made, driver errors.
        """
        while self._at_hand:
            connection = self._at_hand.pop()
            if _open(connection):
                return connection
            await self._give_back(connection)
        self._waiting += 1
        try:
            return await self._from_pool()
        finally:
            self._waiting -= 1

    async def _from_pool(self) -> Connection:
        wait_s = self._settings.connect_timeout_s
        try:
            return await self._pool.acquire(timeout=wait_s)
        except TimeoutError as exc:
            most = self._settings.pool_max
            if self._pool.get_size() < most or self._pool.get_idle_size():
                raise
            raise Unavailable(
                f"all {most} connections of this process to Postgres are in use, and none "
                f"became free within {wait_s:g} s (HAMI_POSTGRES_POOL_MAX)"
            ) from exc

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Yield a connection in a transaction, which commits at the end of the block.

        Raises: see `translate_errors`.
        """
        async with self.connection() as connection, connection.transaction():
            yield connection
            if self._faults is not None:
                await self._faults.hit("postgres.commit")

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Return the rows of one statement outside a transaction.

        Raises: see `translate_errors`.
        """
        # As `connection`, without the generators: a pod's way asks ten times.
        with translate_errors():
            connection, well = await self._acquire(), False
            try:
                found = list(await connection.fetch(query, *args))
                well = True
            finally:
                await self._release(connection, well=well)
            return found

    async def fetchrow(self, query: str, *args: object) -> Any:
        """Return the first row of one statement, or None.

        Raises: see `translate_errors`.
        """
        with translate_errors():
            connection, well = await self._acquire(), False
            try:
                found = await connection.fetchrow(query, *args)
                well = True
            finally:
                await self._release(connection, well=well)
            return found

    async def ping(self) -> None:
        """Check the ledger.

        Raises: Unavailable if it does not answer, or if migrations are missing.
        """
        row = await self.fetchrow("SELECT max(version_num)::text AS newest FROM alembic_version")
        if (row["newest"] or "") < NEEDED:
            raise Unavailable(
                f"the ledger's schema is at {row['newest']}, and this version needs {NEEDED}: "
                "run `hamictl db upgrade --before-rollout`, or the migration Job of the manifests"
            )


@asynccontextmanager
async def open_database(
    settings: PostgresSettings, *, application: str, faults: Faults | None = None
) -> AsyncIterator[Database]:
    """Open the pool; if the server is unavailable, the first statement fails, not this call.

    `application` is what `pg_stat_activity` shows.
    """
    async with open_pool(settings, application, jit=False) as pool:
        database = Database(pool, settings, faults, application=application)
        try:
            yield database
        finally:
            await database.close()


def _open(connection: Connection) -> bool:
    """Return whether the server has not closed the connection since its last use."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has taken it back already
        return False
