"""Which group each node is of, such as its rack: the value of the first label that it has.

Handlers of the node informer note it, a worker writes what changed, all nodes in one statement. A
node whose agent has not reported yet has no row: it is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ports.ledger import InventoryStore

logger = logging.getLogger(__name__)

AGAIN_S = 30.0
"""So much later what could not be written is tried again."""


def group_of(node: JsonMapping, labels: Sequence[str]) -> str | None:
    """The value of the first of `labels` that the node has and that is not empty; None: none."""
    own = node["metadata"].get("labels") or {}
    return next((str(own[label]) for label in labels if own.get(label)), None)


@dataclass(eq=False, kw_only=True)
class NodeGroups:
    """Handlers of the node informer, and the worker behind them."""

    store: InventoryStore
    labels: Sequence[str]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _seen: dict[NodeName, str | None] = field(default_factory=dict, init=False)
    _wished: dict[NodeName, str | None] = field(default_factory=dict, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def node_seen(self, node: JsonMapping) -> None:
        """A node appeared or changed."""
        name, group = NodeName(node["metadata"]["name"]), group_of(node, self.labels)
        if name in self._seen and self._seen[name] == group:
            return
        self._seen[name] = self._wished[name] = group
        self._woken.set()

    def node_gone(self, node: JsonMapping) -> None:
        """A node went; one of its name that comes again has its own."""
        name = NodeName(node["metadata"]["name"])
        self._seen.pop(name, None)
        self._wished.pop(name, None)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            waits_s = AGAIN_S if self._wished else None
            try:
                async with asyncio.timeout(waits_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            await self.once()

    async def once(self) -> None:
        """Writes what is wished; of nodes that the ledger does not know it stays so."""
        wished = dict(self._wished)
        if not wished:
            return
        with self.bulkhead.item("node-groups", "groups of nodes"):
            try:
                known = await self.store.set_groups(wished)
            except HamiError as exc:
                logger.warning(
                    "groups of nodes not written, retrying", extra={"error": clip(str(exc))}
                )
                return
            for name in known:
                if name in self._wished and self._wished[name] == wished[name]:
                    del self._wished[name]
