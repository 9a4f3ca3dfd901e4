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
from typing import TYPE_CHECKING

from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, HamiError
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.registry import Vendors

from hami_scheduler.drift import NodeProblems
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ports.cluster import NodeApi
from hami_scheduler.watch.node_annotations import NodeAnnotations, read_annotations

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.inventory.store import PostgresInventory

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class AnnotatedInventory:
    """Writes what Node objects show to the ledger.

    `on_written` gets the nodes whose cards changed in the ledger.
    """

    store: PostgresInventory
    view: ClusterState
    nodes: NodeApi
    vendors: Vendors
    refused: NodeProblems
    malformed: NodeProblems
    on_written: Callable[[NodeName], None]
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _annotations: dict[NodeName, NodeAnnotations] = field(default_factory=dict, init=False)
    asked: set[str] = field(default_factory=set, init=False)
    """Nodes whose device plugins were asked and may not have answered."""

    def forget(self, name: NodeName) -> None:
        """Forget a deleted node."""
        self._annotations.pop(name, None)
        self.asked.discard(name)
        self.refused.forget(name)
        self.malformed.forget(name)

    async def look(self, node: JsonMapping) -> None:
        """Take over what the node shows. Raises: Conflict, Unavailable."""
        name = NodeName(node["metadata"]["name"])
        if not self.view.loaded:
            await self.view.refresh()
        annotations = read_annotations(node, self.vendors, self.clock())
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
        """Write the node's cards. Return False if another source owns them."""
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
            logger.debug("Failed to ask for a handshake", extra={"node": name})
        except HamiError as exc:
            logger.warning("Failed to ask for a handshake", extra={"node": name, "error": str(exc)})
