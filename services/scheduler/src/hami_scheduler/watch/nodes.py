"""Carries out what the node watch noted: cordons and departures go into the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError
from hamicommon.process.bulkhead import Bulkhead

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
        bulkhead: Bulkhead | None = None,
    ) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._store = store
        self._view = view
        self._forget = forget
        self._on_freed = on_freed
        self._cordons: dict[str, frozenset[str]] = {}
        self._wished: dict[str, frozenset[str]] = {}
        self._gone: dict[str, None] = {}
        self._woken = asyncio.Event()

    def cordon(self, node: str, uuids: frozenset[str]) -> None:
        """Exactly these cards of the node shall be cordoned."""
        self._cordons[node] = self._wished[node] = uuids
        self._gone.pop(node, None)
        self._woken.set()

    def again(self, node: str) -> None:
        """Cards of the node were written: a wish that came before them holds for them too."""
        if self._wished.get(node):
            self._cordons[node] = self._wished[node]
            self._woken.set()

    def gone(self, node: str) -> None:
        """The Node object was deleted."""
        self._gone[node] = None
        self._cordons.pop(node, None)
        self._wished.pop(node, None)
        self._woken.set()

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if not await self._round():
                await asyncio.sleep(RETRY_S)
                self._woken.set()

    async def _round(self) -> bool:
        """Tries each node once; False when one has to be tried again."""
        done = True
        for node in list(self._cordons):
            done &= await self._tried(node, self._write_cordon)
        for node in list(self._gone):
            done &= await self._tried(node, self._mark_gone)
        return done

    async def _tried(self, node: str, step: Callable[[str], Awaitable[None]]) -> bool:
        try:
            with self._bulkhead.item("node-changes", node):
                await step(node)
                return True
        except HamiError as exc:
            logger.warning("node change waits", extra={"node": node, "error": clip(str(exc))})
        return False

    async def _write_cordon(self, node: str) -> None:
        uuids = self._cordons.get(node)
        if uuids is None:
            return
        if await self._store.set_cordoned(NodeName(node), uuids):
            await self._view.refresh_node(NodeName(node))
            self._on_freed()
        if self._cordons.get(node) == uuids:
            del self._cordons[node]

    async def _mark_gone(self, node: str) -> None:
        if node not in self._gone:
            return
        await self._store.mark_gone(NodeName(node))
        self._forget(node)
        await self._view.refresh_node(NodeName(node))
        self._gone.pop(node, None)
