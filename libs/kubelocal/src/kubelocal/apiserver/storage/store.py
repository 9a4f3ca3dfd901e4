"""State of the emulated cluster: every object, one counter of versions, the recent changes.

Writers pass a function. The one writer task runs the waiting functions, in order, on a private
layer over the committed state and commits the layer to the journal in one write. Only then does it
show the layer to readers and watches and answer the writers. So all state that a client has seen
survives a kill -9.

Each committed change is added to the history of its collection; a watch follows it from its
resourceVersion on. A watch from a version that has been forgotten gets 410 and lists again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import expired
from kubelocal.apiserver.schema.resources import STORED
from kubelocal.apiserver.storage import selectors
from kubelocal.apiserver.storage.journal import Journal
from kubelocal.apiserver.storage.objects import Key, StoredObject, seal

# Enough for minutes of a busy cluster; a version is a few KiB, so some 50 MiB at the worst.
HISTORY_LENGTH = 8192


@dataclass(slots=True)
class WatchChange:
    """`before` is the version that `now` replaced; of a deletion, `now` is the last state."""

    kind: str  # ADDED, MODIFIED or DELETED
    now: StoredObject
    before: StoredObject | None
    lines: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSelection:
    """Selection of objects by a list or watch."""

    namespace: str = ""
    labels: selectors.Predicate = selectors.everything
    fields: selectors.Predicate = selectors.everything

    def takes(self, stored: StoredObject) -> bool:
        """Whether this version is wanted."""
        return (
            (not self.namespace or stored.namespace == self.namespace)
            and self.labels(stored.labels)
            and self.fields(stored.fields)
        )

    def kind_of(self, change: WatchChange) -> str:
        """The kind of event that the change is to this watcher; an empty string for none."""
        was = change.before is not None and self.takes(change.before)
        now = change.kind != "DELETED" and self.takes(change.now)
        if now:
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else ""


class History:
    """The changes of one collection after `forgotten` (a resourceVersion)."""

    def __init__(self, forgotten: int) -> None:
        self.forgotten = forgotten
        self._versions: list[int] = []
        self._changes: list[WatchChange] = []
        self._next: asyncio.Future[None] | None = None

    def append(self, change: WatchChange) -> None:
        """Add a change, and forget the oldest ones."""
        self._versions.append(change.now.version)
        self._changes.append(change)
        if len(self._changes) > 2 * HISTORY_LENGTH:
            self._forget(len(self._changes) - HISTORY_LENGTH)

    def compact(self, version: int) -> None:
        """Forget everything up to `version`."""
        self._forget(bisect_right(self._versions, version))
        self.forgotten = max(self.forgotten, version)

    def after(self, version: int) -> list[WatchChange]:
        """The changes later than `version`. Raises: ApiError (410) where some are forgotten."""
        if version < self.forgotten:
            raise expired(version, self.forgotten)
        return self._changes[bisect_right(self._versions, version) :]

    def wake(self) -> None:
        """Wake all waiting readers: there is something to read."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait for the next `wake`, or until the time is over."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._next], timeout=timeout_s)

    def _forget(self, count: int) -> None:
        if count:
            self.forgotten = max(self.forgotten, self._versions[count - 1])
            del self._versions[:count], self._changes[:count]


T = TypeVar("T")
# Bounds the time for which a batch holds the event loop; a function takes some 100 microseconds.
BATCH = 64


class Transaction:
    """Reads and writes of one writer; all are discarded if the writer's function raises."""

    def __init__(self, store: ObjectStore, batch: Batch) -> None:
        self._store = store
        self._batch = batch
        self.layer: dict[Key, StoredObject | None] = {}
        self.changes: list[WatchChange] = []
        self.version = batch.version

    def get(self, collection: str, namespace: str, name: str) -> StoredObject | None:
        """The object as this transaction or batch has it; None if there is none."""
        key = (collection, namespace, name)
        if key in self.layer:
            return self.layer[key]
        if key in self._batch.layer:
            return self._batch.layer[key]
        return self._store.get(collection, namespace, name)

    def items(self, collection: str, namespace: str = "") -> list[StoredObject]:
        """All objects of a collection (of one namespace), in no stated order."""
        merged: dict[Key, StoredObject | None] = {
            stored.key: stored for stored in self._store.collections[collection].values()
        }
        for layer in (self._batch.layer, self.layer):
            merged |= {key: now for key, now in layer.items() if key[0] == collection}
        return [
            stored
            for stored in merged.values()
            if stored is not None and (not namespace or stored.namespace == namespace)
        ]

    def put(self, collection: str, body: Json) -> StoredObject:
        """Write a new version of `body`."""
        self.version += 1
        stored = seal(collection, body, self.version)
        before = self.get(*stored.key)
        self.layer[stored.key] = stored
        self.changes.append(WatchChange("MODIFIED" if before else "ADDED", stored, before))
        return stored

    def delete(self, collection: str, body: Json) -> StoredObject:
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
        self.layer: dict[Key, StoredObject | None] = {}
        self.changes: list[WatchChange] = []

    def keep(self, transaction: Transaction) -> None:
        """Take over the changes of a transaction."""
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
        self.collections: dict[str, dict[tuple[str, str], StoredObject]] = {
            name: {} for name in STORED
        }
        self.histories: dict[str, History] = {}

    async def open(self) -> None:
        """Read everything back. Watches from before this moment get 410."""
        self.version, objects = await self._journal.load()
        if self.version == 0:
            # Real clusters never show small versions either; no client may assume 1.
            self.version = 100
        for stored in objects:
            if stored.key[0] in self.collections:
                self.collections[stored.key[0]][stored.key[1:]] = stored
        self.histories = {name: History(self.version) for name in STORED}

    def get(self, collection: str, namespace: str, name: str) -> StoredObject | None:
        """The object as this transaction or batch has it; None if there is none."""
        return self.collections[collection].get((namespace, name))

    def items(self, collection: str) -> list[StoredObject]:
        """All committed objects, in the order of namespace and name."""
        objects = self.collections[collection]
        return [objects[key] for key in sorted(objects)]

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in turn and return its result once it is durable, or raise its exception."""
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
