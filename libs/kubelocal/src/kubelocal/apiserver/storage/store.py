"""The truth of the emulated cluster: every object, one counter of versions, the recent changes.

Writers hand in a function; the one writer task runs those that wait, in order, on a private layer
over the committed state, commits the layer to the journal in one go, and only then shows it to
readers and watches and answers the writers. So what anybody has seen survives a kill -9.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resources import STORED
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.objects import Key, Stored, seal
from kubelocal.apiserver.storage.watch_cache import History, WatchChange

T = TypeVar("T")
# Bounds how long one batch holds the event loop: a function takes some 100 microseconds.
BATCH = 64


class Transaction:
    """What one writer sees and does; nothing of it lasts if the writer's function raises."""

    def __init__(self, store: ObjectStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch
        self.layer: dict[Key, Stored | None] = {}
        self.changes: list[WatchChange] = []
        self.version = batch.version

    def get(self, collection: str, namespace: str, name: str) -> Stored | None:
        key = (collection, namespace, name)
        if key in self.layer:
            return self.layer[key]
        if key in self._batch.layer:
            return self._batch.layer[key]
        return self._store.get(collection, namespace, name)

    def items(self, collection: str, namespace: str = "") -> list[Stored]:
        """All objects of a collection (of one namespace), in no stated order."""
        merged: dict[Key, Stored | None] = {
            stored.key: stored for stored in self._store.collections[collection].values()
        }
        for layer in (self._batch.layer, self.layer):
            merged |= {key: now for key, now in layer.items() if key[0] == collection}
        return [
            stored
            for stored in merged.values()
            if stored is not None and (not namespace or stored.namespace == namespace)
        ]

    def put(self, collection: str, body: Json) -> Stored:
        """Write a new version of `body`."""
        self.version += 1
        stored = seal(collection, body, self.version)
        before = self.get(*stored.key)
        self.layer[stored.key] = stored
        self.changes.append(WatchChange("MODIFIED" if before else "ADDED", stored, before))
        return stored

    def delete(self, collection: str, body: Json) -> Stored:
        """Remove the object; its last state gets the version of the deletion."""
        self.version += 1
        last = seal(collection, body, self.version)
        before = self.get(*last.key)
        self.layer[last.key] = None
        self.changes.append(WatchChange("DELETED", last, before))
        return last


class Batch:
    """The transactions that are committed together."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.layer: dict[Key, Stored | None] = {}
        self.changes: list[WatchChange] = []

    def keep(self, transaction: Transaction) -> None:
        self.version = transaction.version
        self.layer |= transaction.layer
        self.changes += transaction.changes


class ObjectStore:
    """Committed objects for readers, `transact` for writers, `histories` for watches."""

    def __init__(self, journal: Journal, *, compact_every: int = 0) -> None:
        self._journal = journal
        self._compact_every = compact_every
        self._since_compaction = 0
        self._waiting: deque[tuple[Callable[[Transaction], Any], asyncio.Future[Any]]] = deque()
        self._work = asyncio.Event()
        self.version = 0
        self.collections: dict[str, dict[tuple[str, str], Stored]] = {name: {} for name in STORED}
        self.histories: dict[str, History] = {}

    async def open(self) -> None:
        """Read everything back. Watches from before this moment get 410."""
        self.version, objects = await self._journal.load()
        if self.version == 0:
            # Real clusters never show small versions either; nobody may count from 1.
            self.version = 100
        for stored in objects:
            if stored.key[0] in self.collections:
                self.collections[stored.key[0]][stored.key[1:]] = stored
        self.histories = {name: History(self.version) for name in STORED}

    def get(self, collection: str, namespace: str, name: str) -> Stored | None:
        return self.collections[collection].get((namespace, name))

    def items(self, collection: str) -> list[Stored]:
        """All committed objects, in the order of namespace and name."""
        objects = self.collections[collection]
        return [objects[key] for key in sorted(objects)]

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in turn and return its result once it is durable; what it raises is raised."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, future))
        self._work.set()
        return await future

    async def write_forever(self) -> None:
        """The one writer."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                await self._write_batch()

    async def _write_batch(self) -> None:
        batch = Batch(self.version)
        done: list[tuple[asyncio.Future[Any], Any, Exception | None]] = []
        for _ in range(min(BATCH, len(self._waiting))):
            work, future = self._waiting.popleft()
            transaction = Transaction(self, batch)
            try:
                done.append((future, work(transaction), None))
                batch.keep(transaction)
            except Exception as error:  # noqa: BLE001 - raised again where the writer waits
                done.append((future, None, error))
        if batch.changes:
            try:
                await self._journal.commit(batch.version, batch.layer.items())
            except Exception as error:  # noqa: BLE001 - raised again where the writers wait
                done = [(future, None, failed or error) for future, _, failed in done]
            else:
                self._show(batch)
        for future, result, failure in done:
            if future.cancelled():
                continue
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

    def _show(self, batch: Batch) -> None:
        self.version = batch.version
        for (collection, *key), stored in batch.layer.items():
            objects = self.collections[collection]
            if stored is None:
                objects.pop((key[0], key[1]), None)
            else:
                objects[key[0], key[1]] = stored
        touched = set()
        for change in batch.changes:
            self.histories[change.now.key[0]].append(change)
            touched.add(change.now.key[0])
        self._compact_if_due(len(batch.changes))
        for collection in touched:
            self.histories[collection].wake()

    def _compact_if_due(self, changes: int) -> None:
        """For tests of clients: forget the whole past every so many changes."""
        self._since_compaction += changes
        if self._compact_every and self._since_compaction >= self._compact_every:
            self._since_compaction = 0
            for history in self.histories.values():
                history.compact(self.version)
                history.wake()
