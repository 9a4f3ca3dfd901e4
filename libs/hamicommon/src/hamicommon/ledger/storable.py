"""Text as PostgreSQL can hold it: without the NUL that Kubernetes' annotations may have.

A user who may create a pod or write on a node chooses text that ends up in the ledger: reasons,
decisions, names of cards. A NUL in it is shown as U+FFFD; the statement goes through, and no loop
dies of what somebody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import asyncpg
import orjson

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def storable_json(value: object) -> bytes:
    """JSON for a jsonb value."""
    data = orjson.dumps(value)
    return _ESCAPED_NUL.sub(rb"\1\\ufffd", data) if rb"\u0000" in data else data


def storable(value: Any) -> Any:
    """The parameter of a statement; lists and tuples of text are looked through."""
    if isinstance(value, str):
        return value.replace("\0", _REPLACEMENT) if "\0" in value else value
    if isinstance(value, list | tuple):
        return type(value)(storable(one) for one in value)
    return value


class StorableConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection whose parameters are made storable."""

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
