"""When a node without our agent is looked at: as it changes, when its plugins were asked, again.

Handlers of the node informer note which nodes changed and which locks were taken off; a worker
tries each. `annotated_inventory.py` has what a look does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hamicommon.domain.ids import NodeName
from hamicommon.errors import NotFound
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.watch.annotated_inventory import AnnotatedInventory
from hami_scheduler.watch.node_annotations import looks
from hami_scheduler.work_queue import WorkQueue

# As HAMi's register loop: a question that ran out shows at most this much later.
LOOK_INTERVAL_S = 15.0


@dataclass(eq=False, kw_only=True)
class AnnotatedNodes:
    """Handlers of the node informer, and the worker behind them."""

    inventory: AnnotatedInventory
    locks: MirroredLocks
    vendors: Vendors
    bulkhead: Bulkhead
    clock: Callable[[], float] | None = None
    _objects: dict[str, JsonMapping] = field(default_factory=dict, init=False)
    _unlocked: dict[str, tuple[NodeName, str, str]] = field(default_factory=dict, init=False)
    """Locks that were taken off: node, annotation and value, by their key in the queue."""

    def __post_init__(self) -> None:
        self._lock_keys = sorted({v.keys.lock for v in self.vendors if v.keys.lock})
        self.queue = WorkQueue("annotated-nodes", self._sync, self.bulkhead, self.clock)

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """Note that a node appeared or changed."""
        name = new["metadata"]["name"]
        self._objects[name] = new
        if old is None or looks(new) != looks(old):
            self.queue.add(name)
        if old is not None:
            self._note_unlocked(NodeName(name), annotations_of(new), annotations_of(old))

    def on_delete(self, node: JsonMapping) -> None:
        """A node went; its cards are marked by the keeper of nodes."""
        name = node["metadata"]["name"]
        self._objects.pop(name, None)
        self.queue.discard(name)
        self.inventory.forget(NodeName(name))

    def _note_unlocked(
        self, name: NodeName, new: Mapping[str, str], old: Mapping[str, str]
    ) -> None:
        for annotation in self._lock_keys:
            value = old.get(annotation, "")
            if value and new.get(annotation) != value:
                key = f"{name} {annotation} {value}"
                self._unlocked[key] = (name, annotation, value)
                self.queue.add(key)

    async def ask_again(self) -> None:
        """Look again at nodes whose plugins were asked and may not have answered."""
        for name in self.inventory.asked:
            self.queue.revisit(name)

    async def _sync(self, key: str) -> None:
        try:
            if (lock := self._unlocked.get(key)) is not None:
                await self.locks.removed(*lock)
            elif (node := self._objects.get(key)) is not None:
                await self.inventory.look(node)
        except NotFound:
            pass  # the node is gone
        self._unlocked.pop(key, None)
