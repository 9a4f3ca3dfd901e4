"""Carries out what the node watch noted: cordons and departures go into the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hamicommon.clipping import clip
from hamicommon.domain.cordons import find_cordoned
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.annotations import DEVICE_CORDON
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ports.cluster import PodEvent, PodEvents
from hami_scheduler.ports.ledger import DriftJournal, InventoryStore
from hami_scheduler.watch.backoff import ItemBackoff

logger = logging.getLogger(__name__)

CORDON_CLASS = "cordon-without-card"
CORDON_REASON = "CordonWithoutCard"
MAX_CORDON_LINES = 16
"""Entries of one annotation that are named; the rest is one line with their number."""


@dataclass(eq=False, kw_only=True)
class UnmatchedCordons:
    """Entries of each node's `hami.io/device-cordon` that name no card at present.

    Each is in the log, the drift journal, and an event on the Node, once.
    """

    journal: DriftJournal
    events: PodEvents
    by_node: dict[str, Mapping[str, str]] = field(default_factory=dict, init=False)
    """Node -> entry -> reason."""

    async def note(self, node: str, unmatched: Mapping[str, str]) -> None:
        """Reports the entries that are new. Raises: Unavailable."""
        before = self.by_node.get(node, {})
        new = [why for entry, why in unmatched.items() if before.get(entry) != why]
        lines = new[:MAX_CORDON_LINES]
        if len(new) > MAX_CORDON_LINES:
            lines.append(f"{len(new) - MAX_CORDON_LINES} more entries name no card")
        for why in lines:
            await self._report(NodeName(node), f"annotation {DEVICE_CORDON}: {why}")
        if unmatched:
            self.by_node[node] = dict(unmatched)
        else:
            self.by_node.pop(node, None)

    def forget(self, node: str) -> None:
        """Drops what is known of a node that is gone."""
        self.by_node.pop(node, None)

    async def _report(self, node: NodeName, text: str) -> None:
        logger.warning("cordon without a card", extra={"node": node, "error": clip(text)})
        await self.journal.drift(CORDON_CLASS, node, text, repaired=False)
        self.events.emit(
            PodEvent(
                kind="Node",
                # Events of objects without a namespace are in this one; kubelets name nodes so.
                namespace="default",
                name=node,
                uid=PodUid(node),
                reason=CORDON_REASON,
                message=text,
                warning=True,
                at=datetime.now(UTC),
            )
        )


@dataclass(eq=False, kw_only=True)
class NodeSync:
    """A worker with the newest wish per node."""

    store: InventoryStore
    view: ClusterState
    forget: Callable[[str], None]
    on_freed: Callable[[], None]
    unmatched: UnmatchedCordons
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    waits: ItemBackoff = field(default_factory=ItemBackoff)
    _cordons: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    _wished: dict[str, frozenset[str]] = field(default_factory=dict, init=False)
    _gone: dict[str, None] = field(default_factory=dict, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def cordon(self, node: str, entries: frozenset[str]) -> None:
        """Takes note of the cards that shall be cordoned, and no other of the node."""
        self._cordons[node] = self._wished[node] = entries
        self._gone.pop(node, None)
        self._due(node)

    def again(self, node: str) -> None:
        """Cards of the node were written: a wish that came before them holds for them too.

        So does the wish for no cordon, for a card that was cordoned on another node.
        """
        wished = self._wished.get(node)
        if wished is None:
            return
        cards = self.view.cluster.cards(NodeName(node))
        if wished or any(card.usage.cordoned for card in cards):
            self._cordons[node] = wished
            self._due(node)

    def gone(self, node: str) -> None:
        """The Node object was deleted."""
        self._gone[node] = None
        self._cordons.pop(node, None)
        self._wished.pop(node, None)
        self._due(node)

    def _due(self, node: str) -> None:
        self.waits.reset(node)
        self._woken.set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self.waits.next_turn(self._woken, [*self._cordons, *self._gone])
            await self.once()

    async def once(self) -> None:
        """Tries each node that is due."""
        for step, nodes in ((self._write_cordon, self._cordons), (self._mark_gone, self._gone)):
            for node in list(nodes):
                if self.waits.due(node):
                    await self._attempt(node, step)

    async def _attempt(self, node: str, step: Callable[[str], Awaitable[None]]) -> None:
        away, wished = False, self._cordons.get(node)
        try:
            with self.bulkhead.item("node-changes", node):
                await step(node)
                self.waits.reset(node)
                return
        except HamiError as exc:
            away = isinstance(exc, Unavailable)
            logger.warning(
                "node change failed, retrying", extra={"node": node, "error": clip(str(exc))}
            )
        if self._cordons.get(node) is wished:  # else it is another wish since, and due at once
            self.waits.failed(node, away=away)

    async def _write_cordon(self, node: str) -> None:
        entries = self._cordons.get(node)
        if entries is None:
            return
        if not self.view.loaded:
            await self.view.refresh()
        cards = [card.usage.device for card in self.view.cluster.cards(NodeName(node))]
        found = find_cordoned(entries, cards)
        # With the entries as they are: one may be the uuid of a card that is away for now.
        if await self.store.set_cordoned(NodeName(node), found.uuids | entries):
            await self.view.refresh_node(NodeName(node))
            self.on_freed()
        if cards:
            await self.unmatched.note(node, found.unmatched)
        if self._cordons.get(node) == entries:
            del self._cordons[node]

    async def _mark_gone(self, node: str) -> None:
        if node not in self._gone:
            return
        await self.store.mark_gone(NodeName(node))
        self.forget(node)
        self.unmatched.forget(node)
        await self.view.refresh_node(NodeName(node))
        self._gone.pop(node, None)
