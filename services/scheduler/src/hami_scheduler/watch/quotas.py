"""Keeps the ledger's quotas equal to the ResourceQuota objects of the API server.

The watch notes which namespaces changed; the worker writes limits and counts again what is used.
The count is repeated now and then, for what others change in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.quota import QuotaLimits
from hami_scheduler.ports.ledger import QuotaStore
from hami_scheduler.watch.backoff import ItemBackoff

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class QuotaSync:
    """Handlers of the quota informer, and the worker behind them."""

    store: QuotaStore
    limits_of: Callable[[JsonMapping], QuotaLimits]
    synced: Callable[[], bool]
    on_written: Callable[[], Awaitable[None]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    waits: ItemBackoff = field(default_factory=ItemBackoff)
    _quotas: dict[str, dict[str, Mapping[str, int]]] = field(default_factory=dict, init=False)
    mistakes: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict, init=False)
    """(namespace, name) of a ResourceQuota -> its entries that limit nothing, each with why."""
    _changed: set[str] = field(default_factory=set, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """A ResourceQuota appeared or changed."""
        metadata = new["metadata"]
        found = self.limits_of(new)
        limits = found.limits
        if old is None or self.limits_of(old).mistakes != found.mistakes:
            where = f"{metadata['namespace']}/{metadata['name']}"
            for why in found.mistakes.values():
                logger.warning("quota limits nothing", extra={"quota": where, "error": why})
        self.mistakes.pop((metadata["namespace"], metadata["name"]), None)
        if found.mistakes:
            self.mistakes[metadata["namespace"], metadata["name"]] = found.mistakes
        known = self._quotas.setdefault(metadata["namespace"], {})
        if limits or metadata["name"] in known:
            if known.get(metadata["name"]) != limits:
                self._note(metadata["namespace"])
            known[metadata["name"]] = limits

    def on_delete(self, quota: JsonMapping) -> None:
        """A ResourceQuota went."""
        metadata = quota["metadata"]
        self.mistakes.pop((metadata["namespace"], metadata["name"]), None)
        if self._quotas.get(metadata["namespace"], {}).pop(metadata["name"], None):
            self._note(metadata["namespace"])

    def limits(self, namespace: str) -> dict[str, int]:
        """The strictest limit per resource."""
        strictest: dict[str, int] = {}
        for limits in self._quotas.get(namespace, {}).values():
            for name, limit in limits.items():
                strictest[name] = min(limit, strictest.get(name, limit))
        return strictest

    def _note(self, namespace: str) -> None:
        self._changed.add(namespace)
        self.waits.reset(namespace)
        self._woken.set()

    async def _all(self) -> set[str]:
        return {name for name in self._quotas if self.limits(name)} | await self._ended()

    async def _ended(self) -> frozenset[str]:
        """Namespaces with limits in the ledger whose quotas went while nobody watched."""
        if not self.synced():
            return frozenset()
        try:
            return await self.store.limited() - self._quotas.keys()
        except HamiError as exc:
            logger.warning("quotas not compared", extra={"error": str(exc)})
            return frozenset()

    async def run(self, every_s: float) -> None:
        """Writes what changed, and everything again every so often, until cancelled."""
        while True:
            await self.waits.next_turn(self._woken, self._changed, most_s=every_s)
            await self.once()

    async def once(self) -> None:
        """Writes the namespaces that are due; where none is, all that are not failing."""
        changed = {namespace for namespace in self._changed if self.waits.due(namespace)}
        self._changed -= changed
        due = changed or await self._all() - self._changed
        written = [await self._written(namespace) for namespace in sorted(due)]
        if changed and any(written):
            try:
                await self.on_written()
            except HamiError as exc:
                # The next comparison of the state reads them.
                logger.warning("Failed to read the quotas", extra={"error": str(exc)})

    async def _written(self, namespace: str) -> bool:
        """False: it is tried again later."""
        try:
            # One that fails in an unknown way is written again with all others.
            with self.bulkhead.item("quota-changes", namespace):
                await self.store.set_limits(namespace, self.limits(namespace))
            self.waits.reset(namespace)
        except HamiError as exc:
            logger.warning(
                "quota not written, retrying",
                extra={"namespace": namespace, "error": clip(str(exc))},
            )
            if namespace not in self._changed:
                self._changed.add(namespace)
                self.waits.failed(namespace, away=isinstance(exc, Unavailable))
            return False
        return True
