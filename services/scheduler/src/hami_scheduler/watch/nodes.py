"""Carries out what the node watch noted: cordons and departures go into the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, Unavailable

from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.ports import InventoryStore

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class NodeSync:
    """A worker with the newest wish per node."""

    def __init__(
        self,
        *,
        store: InventoryStore,
        view: LedgerSnapshotCache,
        forget: Callable[[str], None],
        on_freed: Callable[[], None],
    ) -> None:
        self._store = store
        self._view = view
        self._forget = forget
        self._on_freed = on_freed
        self._cordons: dict[str, frozenset[str]] = {}
        self._wished: dict[str, frozenset[str]] = {}
        self._gone: set[str] = set()
        self._woken = asyncio.Event()

    def cordon(self, node: str, uuids: frozenset[str]) -> None:
        """Exactly these cards of the node shall be cordoned."""
        self._cordons[node] = self._wished[node] = uuids
        self._gone.discard(node)
        self._woken.set()

    def again(self, node: str) -> None:
        """Cards of the node were written: a wish that came before them holds for them too."""
        if self._wished.get(node):
            self._cordons[node] = self._wished[node]
            self._woken.set()

    def gone(self, node: str) -> None:
        """The Node object was deleted."""
        self._gone.add(node)
        self._cordons.pop(node, None)
        self._wished.pop(node, None)
        self._woken.set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._work()
            except (Unavailable, Conflict) as exc:
                logger.warning("node change waits", extra={"error": str(exc)})
                await asyncio.sleep(RETRY_S)
                self._woken.set()

    async def _work(self) -> None:
        while self._cordons:
            node, uuids = next(iter(self._cordons.items()))
            if await self._store.set_cordoned(NodeName(node), uuids):
                await self._view.refresh_node(NodeName(node))
                self._on_freed()
            if self._cordons.get(node) == uuids:
                del self._cordons[node]
        while self._gone:
            node = next(iter(self._gone))
            await self._store.mark_gone(NodeName(node))
            self._forget(node)
            await self._view.refresh_node(NodeName(node))
            self._gone.discard(node)
