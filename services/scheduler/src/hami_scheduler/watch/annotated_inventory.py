"""Keeps the ledger's nodes without our agent equal to what their Node objects show.

One look asks the vendors (`node_annotations.py`), writes the ledger, and puts the question of the
handshake to the device plugins. A node that our agent reports is never written here: the store
refuses it. `annotated_nodes.py` decides when a node is looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, HamiError
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.registry import Vendors

from hami_scheduler.bus.refused_cards import RefusedCards
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import NodeApi
from hami_scheduler.ports.ledger import DriftJournal, InventoryStore
from hami_scheduler.watch.node_annotations import NodeAnnotations, read_annotations

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class MalformedAnnotations:
    """Annotations that no vendor can read: logged and journalled once each, and counted."""

    journal: DriftJournal
    instruments: SchedulerInstruments
    _counts: dict[NodeName, int] = field(default_factory=dict, init=False)

    async def report(
        self, name: NodeName, before: NodeAnnotations | None, annotations: NodeAnnotations
    ) -> None:
        """What a look at the node found. Raises: Unavailable."""
        known = {} if before is None else before.malformed
        self._counts[name] = len(annotations.malformed)
        for vendor, why in annotations.malformed.items():
            if known.get(vendor) != why:
                text = f"{vendor}: {why}; its last good cards stay"
                logger.warning("malformed node annotation", extra={"node": name, "error": text})
                await self.journal.drift("inventory-malformed", name, text, repaired=False)
        if known.keys() != annotations.malformed.keys():
            self._count()

    def forget(self, name: NodeName) -> None:
        """The node is gone."""
        self._counts.pop(name, None)
        self._count()

    def _count(self) -> None:
        self.instruments.malformed_inventories.set(sum(self._counts.values()))


@dataclass(eq=False, kw_only=True)
class AnnotatedInventory:
    """Writes what Node objects show to the ledger.

    `on_written` gets the nodes whose cards changed in the ledger.
    """

    store: InventoryStore
    view: ClusterState
    nodes: NodeApi
    vendors: Vendors
    refused: RefusedCards
    malformed: MalformedAnnotations
    on_written: Callable[[NodeName], None]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _annotations: dict[NodeName, NodeAnnotations] = field(default_factory=dict, init=False)
    asked: set[str] = field(default_factory=set, init=False)
    """Nodes whose device plugins were asked and may not have answered."""

    def forget(self, name: NodeName) -> None:
        """The node is gone."""
        self._annotations.pop(name, None)
        self.asked.discard(name)
        self.refused.forget(name)
        self.malformed.forget(name)

    async def look(self, node: JsonMapping) -> None:
        """Takes over what the node shows. Raises: Conflict, Unavailable."""
        name = NodeName(node["metadata"]["name"])
        if not self.view.loaded:
            await self.view.refresh()
        annotations = read_annotations(node, self.vendors, self.clock())
        before = self._annotations.get(name)
        if not annotations.empty or before is not None or self.view.cluster.cards(name):
            if not await self._write(name, node, annotations, before):
                return
            self._annotations[name] = annotations
            await self.malformed.report(name, before, annotations)
        self.asked.discard(name)
        if annotations.asked or annotations.questions:
            self.asked.add(name)
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
            observed_at=self.clock(),
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
            await self.view.refresh_node(name)
            self.on_written(name)
        return True

    async def _ask(self, name: NodeName, node: JsonMapping, annotations: NodeAnnotations) -> None:
        try:
            await self.nodes.annotate(
                name, annotations.questions, resource_version=node["metadata"]["resourceVersion"]
            )
        except Conflict:
            # The node is another by now: its next state is on the way here.
            logger.debug("handshake not asked", extra={"node": name})
        except HamiError as exc:
            logger.warning("handshake not asked", extra={"node": name, "error": str(exc)})
