"""Carries out what the node watch noted: cordons and departures go into the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hamicommon.clipping import clip
from hamicommon.domain.cordons import find_cordoned
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError, Unavailable
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.ports import InventoryStore
from hami_scheduler.watch.backoff import ItemBackoff
from hami_scheduler.watch.cordons import UnmatchedCordons

logger = logging.getLogger(__name__)


class NodeSync:
    """A worker with the newest wish per node."""

    def __init__(
        self,
        *,
        store: InventoryStore,
        view: LedgerSnapshotCache,
        forget: Callable[[str], None],
        on_freed: Callable[[], None],
        unmatched: UnmatchedCordons,
        bulkhead: Bulkhead | None = None,
        waits: ItemBackoff | None = None,
    ) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._waits = waits or ItemBackoff()
        self._store = store
        self._view = view
        self._forget = forget
        self._on_freed = on_freed
        self._unmatched = unmatched
        self._cordons: dict[str, frozenset[str]] = {}
        self._wished: dict[str, frozenset[str]] = {}
        self._gone: dict[str, None] = {}
        self._woken = asyncio.Event()

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
        cards = self._view.cluster.cards(NodeName(node))
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
        self._waits.reset(node)
        self._woken.set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self._waits.next_turn(self._woken, [*self._cordons, *self._gone])
            await self.once()

    async def once(self) -> None:
        """Tries each node that is due."""
        for step, nodes in ((self._write_cordon, self._cordons), (self._mark_gone, self._gone)):
            for node in list(nodes):
                if self._waits.due(node):
                    await self._attempt(node, step)

    async def _attempt(self, node: str, step: Callable[[str], Awaitable[None]]) -> None:
        away, wished = False, self._cordons.get(node)
        try:
            with self._bulkhead.item("node-changes", node):
                await step(node)
                self._waits.reset(node)
                return
        except HamiError as exc:
            away = isinstance(exc, Unavailable)
            logger.warning(
                "node change failed, retrying", extra={"node": node, "error": clip(str(exc))}
            )
        if self._cordons.get(node) is wished:  # else it is another wish since, and due at once
            self._waits.failed(node, away=away)

    async def _write_cordon(self, node: str) -> None:
        entries = self._cordons.get(node)
        if entries is None:
            return
        if not self._view.loaded:
            await self._view.refresh()
        cards = [card.usage.device for card in self._view.cluster.cards(NodeName(node))]
        found = find_cordoned(entries, cards)
        # With the entries as they are: one may be the uuid of a card that is away for now.
        if await self._store.set_cordoned(NodeName(node), found.uuids | entries):
            await self._view.refresh_node(NodeName(node))
            self._on_freed()
        if cards:
            await self._unmatched.note(node, found.unmatched)
        if self._cordons.get(node) == entries:
            del self._cordons[node]

    async def _mark_gone(self, node: str) -> None:
        if node not in self._gone:
            return
        await self._store.mark_gone(NodeName(node))
        self._forget(node)
        self._unmatched.forget(node)
        await self._view.refresh_node(NodeName(node))
        self._gone.pop(node, None)
