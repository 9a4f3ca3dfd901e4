"""One bounded, read-only transaction on the ledger.

Pages have a few connections of their own: what people look at never takes one from the reports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from hamicommon.errors import Unavailable
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.database import Database, translated

STATEMENT_TIMEOUT_MS = 2000
"""No page is worth more of the ledger's time."""


class PagesLedger:
    """Where the pages read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """For named questions, which bound themselves. Raises: Unavailable."""
        async with self._database.connection() as connection:
            yield connection

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Connection]:
        """One consistent reading.

        Raises: Unavailable while Postgres is away, or when a statement takes too long.
        """
        async with self._database.connection() as connection:
            # Inside, so that a time-out has its own sentence.
            with translated():
                try:
                    async with connection.transaction(isolation="repeatable_read", readonly=True):
                        await connection.execute(
                            f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"
                        )
                        yield connection
                except asyncpg.QueryCanceledError as exc:
                    raise Unavailable(
                        f"the ledger took more than {STATEMENT_TIMEOUT_MS / 1000:g} s for this page"
                    ) from exc
