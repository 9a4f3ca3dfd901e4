"""The ledger's statistics on the bus, for those who may not read the ledger: the webhook.

Every few seconds: what quotas have left by namespace (those that changed), and what the ledger
knows of the cluster. Everything is published again now and then, for a stream that was lost;
readers take the newest by its time. While the ledger can't be read nothing is published, and
readers take silence for "unknown".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from hamicommon.bus.client import Bus
from hamicommon.events import (
    LEDGER_CLUSTER_SUBJECT,
    ClusterNumbers,
    NamespaceNumbers,
    QuotaNumbers,
    ledger_quota_subject,
)
from hamicommon.process.bulkhead import Bulkhead
from pydantic import BaseModel

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats

PUBLISH_EVERY_S = 2.0
PUBLISH_ALL_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStats:
    """What the ledger counted at one moment."""

    taken_at: datetime
    """By the ledger's clock, which all replicas share."""
    quotas: Mapping[str, tuple[QuotaNumbers, ...]]
    """By namespace; without items where there is no limit any more."""
    agent_nodes: int
    foreign_vendors: tuple[str, ...]
    gone_nodes: tuple[str, ...] = ()
    """Nodes with an agent that were deleted lately."""


@dataclass(eq=False)
class LedgerStatsPublisher:
    """Publishes what changed, and everything now and then."""

    reader: PostgresLedgerStats
    bus: Bus
    _: KW_ONLY
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _published: dict[str, tuple[QuotaNumbers, ...]] = field(default_factory=dict, init=False)
    _published_all_s: float = field(default_factory=lambda: float("-inf"), init=False)

    async def once(self) -> None:
        """Reads the ledger and publishes. Raises: Unavailable, Conflict."""
        await self.publish(await self.reader.read())

    async def publish(self, found: LedgerStats) -> None:
        """Publishes one reading. Raises: Unavailable; then the rest goes out at the next."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._published_all_s >= PUBLISH_ALL_EVERY_S:
            self._published.clear()
            self._published_all_s = now_s
        for namespace, quotas in found.quotas.items():
            if self._published.get(namespace) == quotas:
                continue
            with self.bulkhead.item("ledger-stats", namespace):
                stats = NamespaceNumbers(
                    namespace=namespace, taken_at=found.taken_at, quotas=quotas
                )
                await self._publish(ledger_quota_subject(namespace), stats, found.taken_at)
                self._published[namespace] = quotas
        cluster = ClusterNumbers(
            taken_at=found.taken_at,
            agent_nodes=found.agent_nodes,
            foreign_vendors=found.foreign_vendors,
            gone_nodes=found.gone_nodes,
        )
        await self._publish(LEDGER_CLUSTER_SUBJECT, cluster, found.taken_at)

    async def _publish(self, subject: str, payload: BaseModel, taken_at: datetime) -> None:
        message_id = f"{subject}/{taken_at.isoformat()}"
        await self.bus.publish(subject, payload, message_id=message_id)
