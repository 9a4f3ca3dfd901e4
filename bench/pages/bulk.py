"""Loads tables as a restore does: by COPY, with their indexes built once at the end.

Only for a database without other users. Keys that a foreign key references stay; all others are
dropped and made again with the same definition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import islice

import asyncpg

NULL = r"\N"
LINES = 5000
"""Lines of one piece of a COPY."""
BUILD_MEMORY = "512MB"

# Of partitioned tables the parent's: it takes those of its partitions along.
_KEYS = """
SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) AS gone,
       format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname,
              pg_get_constraintdef(oid)) AS back
  FROM pg_constraint k WHERE contype IN ('p', 'u', 'x') AND conrelid = ANY($1::text[]::regclass[])
   AND NOT EXISTS (SELECT FROM pg_constraint f WHERE f.contype = 'f' AND f.conindid = k.conindid)
"""
_INDEXES = """
SELECT format('DROP INDEX %s', indexrelid::regclass) AS gone, pg_get_indexdef(indexrelid) AS back
  FROM pg_index WHERE indrelid = ANY($1::text[]::regclass[])
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""


@asynccontextmanager
async def without_indexes(
    connection: asyncpg.Connection, tables: Sequence[str]
) -> AsyncIterator[None]:
    """Drop the indexes inside the block; make them again afterwards."""
    found = [row for query in (_KEYS, _INDEXES) for row in await connection.fetch(query, tables)]
    for row in found:
        await connection.execute(row["gone"])
    yield
    await connection.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY}'")
    for row in found:
        await connection.execute(row["back"], timeout=600)
    await connection.execute("RESET maintenance_work_mem")


async def copy(connection: asyncpg.Connection, target: str, lines: Iterable[str]) -> None:
    """`target` is `table (column, ...)`; the lines are in COPY's text format."""
    table, _, columns = target.partition(" ")
    await connection.copy_to_table(
        table, columns=columns.strip("()").split(", "), source=_pieces(lines)
    )


async def _pieces(lines: Iterable[str]) -> AsyncIterator[bytes]:
    """The lines, some thousand at a time; the loop gets its turn between them."""
    rest = iter(lines)
    while piece := "".join(islice(rest, LINES)):
        yield piece.encode()
        await asyncio.sleep(0)
