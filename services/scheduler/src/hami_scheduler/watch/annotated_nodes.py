"""When a node without our agent is looked at: as it changes, when its plugins were asked, again.

Handlers of the node informer note which nodes changed and which locks were taken off; one worker
tries each, and what fails waits longer each time. `annotated_inventory.py` has what a look does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping

from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.watch.annotated_inventory import AnnotatedInventory
from hami_scheduler.watch.backoff import ItemBackoff
from hami_scheduler.watch.node_annotations import looks

logger = logging.getLogger(__name__)

# As HAMi's register loop: a question that ran out shows at most this much later.
LOOK_AGAIN_S = 15.0


class AnnotatedNodes:
    """Handlers of the node informer, and the worker behind them."""

    def __init__(
        self,
        *,
        inventory: AnnotatedInventory,
        locks: MirroredLocks,
        vendors: Vendors,
        bulkhead: Bulkhead,
    ) -> None:
        self._inventory = inventory
        self._locks = locks
        self._bulkhead = bulkhead
        self._lock_keys = sorted({v.keys.lock for v in vendors if v.keys.lock})
        self._objects: dict[str, JsonMapping] = {}
        self._changed: dict[str, None] = {}
        self._unlocked: dict[str, tuple[NodeName, str, str]] = {}
        self._waits = ItemBackoff()
        self._woken = asyncio.Event()

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """A node appeared or changed."""
        name = new["metadata"]["name"]
        self._objects[name] = new
        if old is None or looks(new) != looks(old):
            self._changed[name] = None
            self._waits.reset(name)
            self._woken.set()
        if old is not None:
            self._note_unlocked(NodeName(name), annotations_of(new), annotations_of(old))

    def on_delete(self, node: JsonMapping) -> None:
        """A node went; its cards are marked by the keeper of nodes."""
        name = node["metadata"]["name"]
        for known in (self._objects, self._changed):
            known.pop(name, None)
        self._waits.reset(name)
        self._inventory.forget(NodeName(name))

    def _note_unlocked(
        self, name: NodeName, new: Mapping[str, str], old: Mapping[str, str]
    ) -> None:
        for key in self._lock_keys:
            value = old.get(key, "")
            if value and new.get(key) != value:
                self._unlocked[f"{name} {key} {value}"] = (name, key, value)
                self._woken.set()

    async def run(self) -> None:
        """Works until cancelled."""
        look_at = time.monotonic() + LOOK_AGAIN_S
        while True:
            most_s = max(0.0, look_at - time.monotonic())
            await self._waits.next_turn(
                self._woken, [*self._unlocked, *self._changed], most_s=most_s
            )
            if time.monotonic() >= look_at:
                self._changed |= dict.fromkeys(self._inventory.asked)
                look_at = time.monotonic() + LOOK_AGAIN_S
            await self.once()

    async def once(self) -> None:
        """Tries each lock and each node that is due."""
        for key in [key for key in self._unlocked if self._waits.due(key)]:
            lock = self._unlocked.pop(key)
            if not await self._tried(key, lock[0], self._locks.removed(*lock)):
                self._unlocked[key] = lock
        for name in [name for name in self._changed if self._waits.due(name)]:
            self._changed.pop(name, None)
            node = self._objects.get(name)
            if node is None:
                self._waits.reset(name)
            elif not await self._tried(name, name, self._inventory.look(node)):
                self._changed[name] = None

    async def _tried(self, key: str, node: str, work: Awaitable[object]) -> bool:
        """False for what may go better in a while; what fails in an unknown way is counted."""
        away = False
        try:
            with self._bulkhead.item("annotated-nodes", node):
                await work
            self._waits.reset(key)
            return True
        except NotFound:
            logger.info("node without agent is gone", extra={"node": node})
            self._waits.reset(key)
            return True
        except HamiError as exc:
            away = isinstance(exc, Unavailable)
            logger.warning(
                "node without agent not written, retrying",
                extra={"node": node, "error": clip(str(exc))},
            )
        if key not in self._changed:  # else it is another one since, and due at once
            self._waits.failed(key, away=away)
        return False
