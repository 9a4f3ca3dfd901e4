"""Read cards from Node objects, if no agent of ours reports them (architecture 2.5).

`node_annotations.py` parses the cards. A look writes them into the ledger, and puts the question of
the handshake to the device plugins. A node that our agent reports is never written: the store
refuses. Handlers of the node informer note which nodes changed and which locks were removed; a
worker tries each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, NotFound
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.best_effort import log_failure
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.registry import Vendors

from hami_scheduler.drift import NodeProblems
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.node_locks import MirroredLocks
from hami_scheduler.ports.cluster import NodeApi
from hami_scheduler.watch.node_annotations import NodeAnnotations, looks, read_annotations
from hami_scheduler.work_queue import WorkQueue

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.inventory import PostgresInventory


logger = logging.getLogger(__name__)


_NOT_ASKED = "Failed to ask for a handshake"
# As HAMi's register loop: a question that ran out shows at most this much later.
LOOK_INTERVAL_S = 15.0


@dataclass(eq=False, kw_only=True)
class AnnotatedNodes:
    """Handlers of the node informer, and their worker.

    `on_written` gets the nodes whose cards changed in the ledger; `clock` is the queue's.
    """

    store: PostgresInventory
    view: ClusterState
    nodes: NodeApi
    refused: NodeProblems
    malformed: NodeProblems
    on_written: Callable[[NodeName], None]
    locks: MirroredLocks
    vendors: Vendors
    bulkhead: Bulkhead
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] | None = None
    _annotations: dict[NodeName, NodeAnnotations] = field(default_factory=dict, init=False)
    _asked: set[str] = field(default_factory=set, init=False)
    """Nodes whose device plugins were asked and may not have answered."""
    _objects: dict[str, JsonMapping] = field(default_factory=dict, init=False)
    _unlocked: dict[str, tuple[NodeName, str, str]] = field(default_factory=dict, init=False)
    """Removed locks as (node, annotation, value), by their key in the queue."""

    def __post_init__(self) -> None:
        self._lock_keys = sorted({v.keys.lock for v in self.vendors if v.keys.lock})
        self.queue = WorkQueue("annotated-nodes", self._sync, self.bulkhead, self.clock)

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """Handle a new or changed node."""
        name = new["metadata"]["name"]
        self._objects[name] = new
        if old is None or looks(new) != looks(old):
            self.queue.add(name)
        if old is not None:
            self._note_unlocked(NodeName(name), annotations_of(new), annotations_of(old))

    def on_delete(self, node: JsonMapping) -> None:
        """Handle a deleted node; `nodes.py` marks its cards."""
        name = node["metadata"]["name"]
        self._objects.pop(name, None)
        self.queue.discard(name)
        self._annotations.pop(NodeName(name), None)
        self._asked.discard(name)
        self.refused.forget(name)
        self.malformed.forget(name)

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
        """Check nodes again whose plugins were asked and may not have answered."""
        for name in self._asked:
            self.queue.revisit(name)

    async def _sync(self, key: str) -> None:
        try:
            if (lock := self._unlocked.get(key)) is not None:
                await self.locks.on_removed(*lock)
            elif (node := self._objects.get(key)) is not None:
                await self._look(node)
        except NotFound:
            pass  # the node is gone
        self._unlocked.pop(key, None)

    async def _look(self, node: JsonMapping) -> None:
        """Apply what the Node shows. Raises: Conflict, Unavailable."""
        name = NodeName(node["metadata"]["name"])
        if not self.view.loaded:
            await self.view.refresh()
        annotations = read_annotations(node, self.vendors, self.now())
        before = self._annotations.get(name)
        if not annotations.empty or before is not None or self.view.cluster.cards(name):
            if not await self._write(name, node, annotations, before):
                return
            self._annotations[name] = annotations
            await self.malformed.note(
                name,
                {
                    vendor: f"{vendor}: {why}; the cards of its last valid value stay"
                    for vendor, why in annotations.malformed.items()
                },
            )
        self._asked.discard(name)
        if annotations.asked or annotations.questions:
            self._asked.add(name)
        if annotations.questions:
            await self._ask(name, node, annotations)

    async def _write(
        self,
        name: NodeName,
        node: JsonMapping,
        annotations: NodeAnnotations,
        before: NodeAnnotations | None,
    ) -> bool:
        """Write the node's cards; return False if another source owns them."""
        metadata = node["metadata"]
        inventory = NodeInventory(
            node=name,
            devices=annotations.devices,
            observed_at=self.now(),
            pair_scores={a: dict(scores) for a, scores in annotations.pair_scores.items()},
        )
        recorded = await self.store.record_annotated(
            inventory,
            keep=frozenset(annotations.malformed),
            node_uid=metadata["uid"],
            sequence=int(metadata["resourceVersion"]),
        )
        if recorded is None:
            return False
        await self.refused.note(name, recorded.refused)
        if recorded.changed or before is None or before.pair_scores != annotations.pair_scores:
            await self.view.refresh_nodes(name)
            self.on_written(name)
        return True

    async def _ask(self, name: NodeName, node: JsonMapping, annotations: NodeAnnotations) -> None:
        # After a Conflict the node has changed: the watch will deliver its next state.
        with suppress(Conflict), log_failure(logger, _NOT_ASKED, but=Conflict, node=name):
            await self.nodes.annotate(
                name, annotations.questions, resource_version=node["metadata"]["resourceVersion"]
            )
