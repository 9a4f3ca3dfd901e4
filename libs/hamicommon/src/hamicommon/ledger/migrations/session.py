"""One connection for all statements of a migration command; blocking.

There is one for all steps because `kubectl port-forward` ends with the first connection that
Postgres closes: a command that connects through it gets no second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import TypeVar

import asyncpg
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from hamicommon.errors import Unavailable
from hamicommon.ledger.connection import Connection, connect, place_of
from hamicommon.settings import PostgresSettings


@asynccontextmanager
async def open_engine(
    settings: PostgresSettings, *, command_timeout_s: float | None = None
) -> AsyncIterator[AsyncEngine]:
    """Return a SQLAlchemy engine without a pool; see `connect` for `command_timeout_s`.

    Its connections raise what `hamicommon.ledger.connection.connect` does.
    """
    # SQLAlchemy would parse the DSN itself, and pass asyncpg libpq's parameters (`sslmode`), which
    # asyncpg accepts only in a DSN.
    creator = partial(connect, settings, command_timeout_s=command_timeout_s)
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=creator)
    try:
        yield engine
    finally:
        await engine.dispose()


T = TypeVar("T")

CLOSE_S = 5.0
_LOST = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    OSError,
    TimeoutError,
)
"""Errors of a statement whose connection ended, or whose answer did not come."""


class SchemaSession:
    """Context manager with a connection; not for use on an event loop."""

    def __init__(
        self, settings: PostgresSettings, *, command_timeout_s: float | None = None
    ) -> None:
        """Without `command_timeout_s` statements have no time limit."""
        self._settings = settings
        self._command_timeout_s = command_timeout_s
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._connection: AsyncConnection

    def __enter__(self) -> SchemaSession:
        """Connect. Raises: see `hamicommon.ledger.connection.connect`."""
        try:
            with self._translate_errors():
                self._connection = self._runner.run(self._connect())
        except BaseException:  # also an interrupt: only this closes the loop
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def ask(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Call `question` with the driver's connection, outside a transaction.

        Raises: Unavailable when the connection is lost, and what `question` raises.
        """

        async def ask_driver() -> T:
            raw = await self._connection.get_raw_connection()
            return await question(raw.driver_connection)

        with self._translate_errors():
            return self._runner.run(ask_driver())

    def work(self, step: Callable[[SyncConnection], T]) -> T:
        """Call `step` with SQLAlchemy's connection; uncommitted changes are rolled back.

        Raises: Unavailable when the connection is lost, and the errors of `step`.
        """

        async def run_step() -> T:
            try:
                return await self._connection.run_sync(step)
            finally:
                if not self._connection.invalidated:
                    await self._connection.rollback()

        with self._translate_errors():
            return self._runner.run(run_step())

    async def _connect(self) -> AsyncConnection:
        engine = await self._stack.enter_async_context(
            open_engine(self._settings, command_timeout_s=self._command_timeout_s)
        )
        return await self._stack.enter_async_context(engine.connect())

    def _end(self) -> None:
        async def close() -> None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._stack.aclose()
            except (DBAPIError, *_LOST):
                pass  # it is gone, which was the aim

        with self._runner:
            self._runner.run(close())

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except _LOST as exc:
            raise self._unavailable(exc) from exc
        except DBAPIError as exc:
            if not exc.connection_invalidated:
                raise
            raise self._unavailable(exc.orig) from exc

    def _unavailable(self, exc: BaseException | None) -> Unavailable:
        place = place_of(self._settings.dsn.get_secret_value())
        return Unavailable(f"Postgres at {place} went away: {exc or 'no answer'}")
