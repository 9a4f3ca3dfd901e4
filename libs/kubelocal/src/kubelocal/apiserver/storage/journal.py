"""Durable part of the store: one SQLite file with a write-ahead log.

Each commit reaches the operating system before its future resolves, so a killed process loses
nothing; `synchronous=NORMAL` leaves the disk flush to checkpoints, so a power cut may lose the last
moments. All calls run on one thread of their own, off the event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hamicommon.errors import Unavailable

from kubelocal.apiserver.storage.objects import Key, StoredObject, unseal

_SCHEMA = """
PRAGMA journal_mode=WAL;
PRAGMA synchronous=NORMAL;
CREATE TABLE IF NOT EXISTS objects (
    collection TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (collection, namespace, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (only INTEGER PRIMARY KEY CHECK (only = 1), version INTEGER);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM objects WHERE collection = ? AND namespace = ? AND name = ?"


class Journal:
    """Objects and the resourceVersion counter on disk."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "objects.sqlite3"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._connection: sqlite3.Connection | None = None

    async def load(self) -> tuple[int, list[StoredObject]]:
        """Open the file; return the newest resourceVersion and all objects."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def commit(
        self, version: int, changes: Iterable[tuple[Key, StoredObject | None]]
    ) -> None:
        """Write all changes (None: deleted) and the counter atomically.

        Raises: Unavailable where the file cannot be written.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._commit, version, list(changes))

    async def close(self) -> None:
        """Close the file after pending writes."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    def _load(self) -> tuple[int, list[StoredObject]]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        (version,) = self._connection.execute("SELECT version FROM counter").fetchone()
        rows = self._connection.execute("SELECT * FROM objects").fetchall()
        return version, [unseal((row[0], row[1], row[2]), row[3], row[4]) for row in rows]

    def _commit(self, version: int, changes: list[tuple[Key, StoredObject | None]]) -> None:
        if self._connection is None:
            raise Unavailable("the object store is not open")
        puts = [(*key, now.version, now.raw) for key, now in changes if now is not None]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_PUT, puts)
            self._connection.executemany(_DELETE, [key for key, now in changes if now is None])
            self._connection.execute("UPDATE counter SET version = ?", (version,))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise Unavailable(f"the object store cannot be written: {error}") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
