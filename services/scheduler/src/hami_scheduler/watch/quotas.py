"""Keep the ledger's quotas equal to the cluster's ResourceQuotas.

The watch notes which namespaces changed; the worker writes limits and counts the use again. The
count is repeated now and then, because others may change the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hamicommon.k8s.types import JsonMapping
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.ledger.quota import QuotaLimits
from hami_scheduler.ports.ledger import QuotaStore
from hami_scheduler.work_queue import WorkQueue

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class QuotaSync:
    """Handlers of the quota informer, and their worker."""

    store: QuotaStore
    limits_of: Callable[[JsonMapping], QuotaLimits]
    synced: Callable[[], bool]
    on_written: Callable[[], Awaitable[None]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _quotas: dict[str, dict[str, Mapping[str, int]]] = field(default_factory=dict, init=False)
    mistakes: dict[tuple[str, str], Mapping[str, str]] = field(default_factory=dict, init=False)
    """Entries without effect by (namespace, name) of their ResourceQuota, with reasons."""

    def __post_init__(self) -> None:
        self.queue = WorkQueue("quota-changes", self._sync, self.bulkhead, self.clock)

    def on_upsert(self, new: JsonMapping, old: JsonMapping | None) -> None:
        """Handle a new or changed ResourceQuota."""
        metadata = new["metadata"]
        found = self.limits_of(new)
        limits = found.limits
        if old is None or self.limits_of(old).mistakes != found.mistakes:
            where = f"{metadata['namespace']}/{metadata['name']}"
            for why in found.mistakes.values():
                logger.warning(
                    "Found a quota that limits nothing", extra={"quota": where, "error": why}
                )
        self.mistakes.pop((metadata["namespace"], metadata["name"]), None)
        if found.mistakes:
            self.mistakes[metadata["namespace"], metadata["name"]] = found.mistakes
        known = self._quotas.setdefault(metadata["namespace"], {})
        if limits or metadata["name"] in known:
            if known.get(metadata["name"]) != limits:
                self.queue.add(metadata["namespace"])
            known[metadata["name"]] = limits

    def on_delete(self, quota: JsonMapping) -> None:
        """Handle a deleted ResourceQuota."""
        metadata = quota["metadata"]
        self.mistakes.pop((metadata["namespace"], metadata["name"]), None)
        if self._quotas.get(metadata["namespace"], {}).pop(metadata["name"], None):
            self.queue.add(metadata["namespace"])

    def limits(self, namespace: str) -> dict[str, int]:
        """Return the lowest limit per resource."""
        strictest: dict[str, int] = {}
        for limits in self._quotas.get(namespace, {}).values():
            for name, limit in limits.items():
                strictest[name] = min(limit, strictest.get(name, limit))
        return strictest

    async def recount(self) -> None:
        """Count the use of every quota again, and end quotas that were deleted unwatched.

        Raises: Unavailable.
        """
        for namespace in self._quotas:
            if self.limits(namespace):
                self.queue.revisit(namespace)
        if self.synced():
            limited = {quota.namespace for quota in await self.store.list_uses()}
            for namespace in limited - self._quotas.keys():
                self.queue.revisit(namespace)

    async def _sync(self, namespace: str) -> None:
        await self.store.set_limits(namespace, self.limits(namespace))
        if not self.queue.due():
            # Otherwise the next comparison of the state reads the changes.
            await self.on_written()
