"""Keeps the ledger's nodes without our agent equal to what their Node objects show.

Handlers of the node informer note which nodes changed; one worker asks the vendors
(`node_annotations.py`), writes the ledger, and puts the question of the handshake to the device
plugins. A node that our agent reports is never written here: the store refuses it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from hamicommon.clipping import clip
from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.registry import Vendors

from hami_scheduler.bus.refused_cards import RefusedCards
from hami_scheduler.ledger.annotation_lock import MirroredLocks
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports import DriftJournal, InventoryStore, NodeApi
from hami_scheduler.watch.backoff import ItemBackoff
from hami_scheduler.watch.node_annotations import NodeAnnotations, looks, read_annotations

logger = logging.getLogger(__name__)

# As HAMi's register loop: a question that ran out shows at most this much later.
LOOK_AGAIN_S = 15.0


class AnnotatedNodes:
    """Handlers of the node informer, and the worker behind them."""

    def __init__(
        self,
        *,
        store: InventoryStore,
        view: LedgerSnapshotCache,
        nodes: NodeApi,
        locks: MirroredLocks,
        vendors: Vendors,
        refused: RefusedCards,
        journal: DriftJournal,
        instruments: SchedulerInstruments,
        on_written: Callable[[str], None],
        on_freed: Callable[[], None],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._view = view
        self._nodes = nodes
        self._locks = locks
        self._vendors = vendors
        self._refused = refused
        self._journal = journal
        self._instruments = instruments
        self._on_written = on_written
        self._on_freed = on_freed
        self._clock = clock
        self._lock_keys = sorted({v.keys.lock for v in vendors if v.keys.lock})
        self._objects: dict[str, JsonMapping] = {}
        self._changed: dict[str, None] = {}
        self._asked: set[str] = set()
        self._annotations: dict[str, NodeAnnotations] = {}
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
        for known in (self._objects, self._changed, self._annotations):
            known.pop(name, None)
        self._waits.reset(name)
        self._asked.discard(name)
        self._refused.forget(NodeName(name))
        self._count_malformed()

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
                self._changed |= dict.fromkeys(self._asked)
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
            elif not await self._tried(name, name, self.look(node)):
                self._changed[name] = None

    async def _tried(self, key: str, node: str, work: Awaitable[object]) -> bool:
        """False for what may go better in a while; what fails in an unknown way is counted."""
        away = False
        try:
            with self._instruments.bulkhead.item("annotated-nodes", node):
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

    async def look(self, node: JsonMapping) -> None:
        """Takes over what the node shows. Raises: Conflict, Unavailable."""
        name = NodeName(node["metadata"]["name"])
        if not self._view.loaded:
            await self._view.refresh()
        annotations = read_annotations(node, self._vendors, self._clock())
        before = self._annotations.get(name)
        if not annotations.empty or before is not None or self._view.cluster.cards(name):
            if not await self._write(name, node, annotations, before):
                return
            self._annotations[name] = annotations
            await self._report(name, before, annotations)
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
        """False when the node's cards are not ours to write."""
        metadata = node["metadata"]
        inventory = NodeInventory(
            node=name,
            devices=annotations.devices,
            observed_at=self._clock(),
            pair_scores={a: dict(scores) for a, scores in annotations.pair_scores.items()},
        )
        recorded = await self._store.record_annotated(
            inventory,
            keep=frozenset(annotations.malformed),
            node_uid=metadata["uid"],
            sequence=int(metadata["resourceVersion"]),
        )
        if recorded is None:
            return False
        await self._refused.note(name, recorded.refused)
        if recorded.changed or before is None or before.pair_scores != annotations.pair_scores:
            await self._view.refresh_node(name)
            self._on_written(name)
            self._on_freed()
        return True

    async def _report(
        self, name: NodeName, before: NodeAnnotations | None, annotations: NodeAnnotations
    ) -> None:
        known = {} if before is None else before.malformed
        for vendor, why in annotations.malformed.items():
            if known.get(vendor) != why:
                text = f"{vendor}: {why}; its last good cards stay"
                logger.warning("malformed node annotation", extra={"node": name, "error": text})
                await self._journal.drift("inventory-malformed", name, text, repaired=False)
        if known.keys() != annotations.malformed.keys():
            self._count_malformed()

    def _count_malformed(self) -> None:
        self._instruments.malformed_inventories.set(
            sum(len(annotations.malformed) for annotations in self._annotations.values())
        )

    async def _ask(self, name: NodeName, node: JsonMapping, annotations: NodeAnnotations) -> None:
        try:
            await self._nodes.annotate(
                name, annotations.questions, resource_version=node["metadata"]["resourceVersion"]
            )
        except Conflict:
            # The node is another by now: its next state is on the way here.
            logger.debug("handshake not asked", extra={"node": name})
        except HamiError as exc:
            logger.warning("handshake not asked", extra={"node": name, "error": str(exc)})
