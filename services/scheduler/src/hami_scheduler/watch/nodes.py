"""Apply cordons, groups and deletions of Nodes to the ledger.

Handlers of the node informer note what a node's object wishes, a worker writes it into the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hamicommon.domain.devices import find_cordoned
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.k8s.annotations import DEVICE_CORDON, annotations_of, decode_cordon
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.drift import NodeProblems
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ports.cluster import PodEvent, PodEvents
from hami_scheduler.work_queue import WorkQueue

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.inventory import PostgresInventory

CORDON_CLASS = "cordon-without-card"
CORDON_REASON = "CordonWithoutCard"


class _Wish(NamedTuple):
    """Wanted state of a node's rows."""

    cordoned: frozenset[str]
    """Entries of its cordon annotation; no other card is cordoned."""
    group: str | None
    unschedulable: bool


@dataclass(eq=False, kw_only=True)
class NodeSync:
    """Handlers of the node informer, and their worker."""

    store: PostgresInventory
    view: ClusterState
    group_labels: Sequence[str]
    """Labels of which the first that a node has is its group, such as its rack."""
    unmatched: NodeProblems
    """Entries of `hami.io/device-cordon` that match no card."""
    events: PodEvents
    on_gone: Callable[[str], None]
    on_freed: Callable[[], None]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _wished: dict[str, _Wish] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue("node-changes", self._sync, self.bulkhead, self.clock)

    def __contains__(self, node: object) -> bool:
        """Return whether the API server has the node."""
        return node in self._wished

    def on_upsert(self, node: JsonMapping) -> None:
        """Handle a new or changed node."""
        name = node["metadata"]["name"]
        cordoned = frozenset(decode_cordon(annotations_of(node).get(DEVICE_CORDON, "")))
        unschedulable = bool((node.get("spec") or {}).get("unschedulable"))
        wish = _Wish(cordoned, group_of(node, self.group_labels), unschedulable)
        if self._wished.get(name) != wish:
            self._wished[name] = wish
            self.queue.add(name)

    def on_delete(self, node: JsonMapping) -> None:
        """Handle a deleted node."""
        name = node["metadata"]["name"]
        self._wished.pop(name, None)
        self.queue.add(name)

    def on_cards_written(self, nodes: Iterable[str]) -> None:
        """Apply the wanted state again to nodes whose cards were just written.

        So does the wish for no cordon, for a card that was cordoned on another node.
        """
        for node in nodes:
            wish = self._wished.get(node)
            if wish is not None and (any(wish) or self._has_cordoned(node)):
                self.queue.add(node)

    def _has_cordoned(self, node: str) -> bool:
        return any(card.usage.cordoned for card in self.view.cluster.cards(NodeName(node)))

    async def _sync(self, node: str) -> None:
        wish = self._wished.get(node)
        if wish is None:
            await self._mark_gone(node)
            return
        if not self.view.loaded:
            await self.view.refresh()
        if wish.cordoned or self._has_cordoned(node):
            await self._write_cordon(node, wish.cordoned)
        await self.store.set_node(
            NodeName(node), group=wish.group, unschedulable=wish.unschedulable
        )

    async def _write_cordon(self, node: str, entries: frozenset[str]) -> None:
        cards = [card.usage.device for card in self.view.cluster.cards(NodeName(node))]
        found = find_cordoned(entries, cards)
        # With the entries as they are: one may be the uuid of a card that is unavailable for now.
        if await self.store.set_cordoned(NodeName(node), found.uuids | entries):
            await self.view.refresh_nodes(NodeName(node))
            self.on_freed()
        if cards:
            for line in await self.unmatched.note(node, found.unmatched):
                self._show(node, line)

    def _show(self, node: str, text: str) -> None:
        # Events of objects without a namespace are in this one.
        ref = PodRef("default", node, PodUid(node))
        self.events.emit(PodEvent(kind="Node", pod=ref, reason=CORDON_REASON, message=text))

    async def _mark_gone(self, node: str) -> None:
        await self.store.mark_gone(NodeName(node))
        self.on_gone(node)
        self.unmatched.forget(node)
        await self.view.refresh_nodes(NodeName(node))


def group_of(node: JsonMapping, labels: Sequence[str]) -> str | None:
    """Return the first non-empty value of `labels` on the node."""
    own = node["metadata"].get("labels") or {}
    return next((str(own[label]) for label in labels if own.get(label)), None)
