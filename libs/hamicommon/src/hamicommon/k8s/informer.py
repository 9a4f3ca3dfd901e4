"""Keep a local copy of one collection by list and watch, as client-go's informers do.

`Informer.run()` lists, then watches with bookmarks. On 410 it lists again and reports the changes
in between; on a broken connection it backs off with jitter and continues from its last
resourceVersion. Handlers are plain functions, called in order on the event loop: they put slow work
into a queue of their own. An object that a handler fails on is logged and counted, and the objects
after it are handed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.client import Expired, KubeApi
from hamicommon.k8s.types import Json
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage

logger = logging.getLogger(__name__)

MIN_BACKOFF_S = 0.2
MAX_BACKOFF_S = 10.0
"""Maximum pause between attempts to list."""

# As client-go. A page of whole pods is some 3 MiB; all pods of a big cluster are a gigabyte.
PAGE = 500

Key = tuple[str, str]
"""Key of an object in the copy: (namespace, name); cluster-wide objects have namespace ""."""

OnUpsert = Callable[[Json, Json | None], None]
OnDelete = Callable[[Json], None]
Trim = Callable[[Json], Json]


def key_of(item: Mapping[str, Any]) -> Key:
    """Return the key of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Informer:
    """Local copy of the collection at `path`, kept current.

    `on_upsert(new, old)` is called with old=None for an object not seen before; `on_delete(last)`
    with the last known state. A pod that was deleted and recreated under the same name causes a
    delete and an upsert, because its uid differs. `trim` returns the part of each object to keep;
    it must keep name, namespace, uid and resourceVersion.

    After `hold_handlers` the copy is kept and no handler is called until `start_handlers`.
    """

    def __init__(
        self,
        api: KubeApi,
        path: str,
        *,
        on_upsert: OnUpsert,
        on_delete: OnDelete,
        trim: Trim | None = None,
        bulkhead: Bulkhead | None = None,
        max_backoff_s: float = MAX_BACKOFF_S,
        **query: str,
    ) -> None:
        """`query`: selectors of the collection; `max_backoff_s`: the longest pause."""
        self._bulkhead = bulkhead or Bulkhead()
        self._api = api
        self._path = path
        self._query = query
        self._on_upsert = on_upsert
        self._on_delete = on_delete
        self._trim = trim
        self._backoff = Backoff(MIN_BACKOFF_S, max_backoff_s)
        self._held = False
        self.store: dict[Key, Json] = {}
        self._outage = Outage(
            logger,
            failed="Failed to watch, retrying",
            again="Watching again",
            about={"path": path},
        )
        self.synced = asyncio.Event()
        self.connected = False

    def hold_handlers(self) -> None:
        """Call no handler until `start_handlers` is called."""
        self._held = True

    def start_handlers(self) -> None:
        """Call the handlers for each stored object as a new one, and then for each change."""
        self._held = False
        for item in list(self.store.values()):
            with self._object(item):
                self._on_upsert(item, None)

    async def run(self) -> None:
        """List and watch until cancelled."""
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                    self._outage.on_success()
                    self._backoff.reset()
                self.connected = True
                version = await self._watch(version)
                self._backoff.reset()
            except Expired:
                version = None
            except HamiError as exc:
                self.connected = False
                self._outage.on_failure(exc)
                await asyncio.sleep(self._backoff.next_s())

    async def _list(self) -> str:
        items: dict[Key, Json] = {}
        listed: set[Key] = set()
        token = ""
        while True:
            more = {"continue": token} if token else {}
            answer = await self._api.get(self._path, limit=str(PAGE), **more, **self._query)
            for item in answer.get("items") or []:
                listed.add(key_of(item))
                with self._object(item):
                    items[key_of(item)] = self._trim_item(item)
            token = answer["metadata"].get("continue", "")
            if not token:
                break
        for key in [key for key in self.store if key not in listed]:
            self._forget(key)
        for item in items.values():
            self._keep(item)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        latest = version
        try:
            async for event in self._api.watch(self._path, resource_version=version, **self._query):
                self._outage.on_success()
                latest = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    with self._object(event["object"]):
                        self._take(event["type"], self._trim_item(event["object"]))
        except Unavailable:
            # Go on from the last event seen, not from where this watch began.
            if latest == version:
                raise
        return latest

    @contextmanager
    def _object(self, item: Json) -> Iterator[None]:
        name = "/".join(key_of(item))
        try:
            with self._bulkhead.item("watch", f"{self._path} {name}"):
                yield
        except HamiError as exc:
            logger.warning(
                "Skipped an object of the watch that can't be read of the watch that can't be read",
                extra={"path": self._path, "object": name, "error": clip(str(exc))},
            )

    def _take(self, change: str, item: Json) -> None:
        if change == "DELETED":
            self.store[key_of(item)] = item
            self._forget(key_of(item))
        else:
            self._keep(item)

    def _trim_item(self, item: Json) -> Json:
        return item if self._trim is None else self._trim(item)

    def _keep(self, item: Json) -> None:
        key = key_of(item)
        old = self.store.get(key)
        if old is not None and old["metadata"]["uid"] != item["metadata"]["uid"]:
            # What a handler does with the one that is gone must not keep the new one out.
            self._forget(key)
            old = None
        if old is not None and (
            old["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]
        ):
            return
        self.store[key] = item
        if not self._held:
            with self._object(item):
                self._on_upsert(item, old)

    def _forget(self, key: Key) -> None:
        item = self.store.pop(key, None)
        if item is not None and not self._held:
            with self._object(item):
                self._on_delete(item)
