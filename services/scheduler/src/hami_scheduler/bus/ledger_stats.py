"""Publish the ledger's statistics on the bus, and answer agents that ask for their grants.

For the webhook, every few seconds: what quotas have left by namespace (those that changed), and
what the ledger knows of the cluster. Everything is published again now and then, for a stream that
was lost; readers take the newest by its time. While the ledger can't be read nothing is published,
and readers take silence for "unknown". An agent that starts, or doubts the bus, asks for all live
grants of its node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from hamicommon.bus.client import Bus
from hamicommon.bus.reader import read_of_node
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.events import (
    LEDGER_CLUSTER_SUBJECT,
    ClusterNumbers,
    GrantSnapshot,
    GrantSnapshotRequest,
    GrantState,
    NamespaceNumbers,
    QuotaNumbers,
    ledger_quota_subject,
)
from hamicommon.grants.grant import grant_of
from hamicommon.process.bulkhead import Bulkhead
from pydantic import BaseModel

from hami_scheduler.ports.ledger import AllocationStore

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats

PUBLISH_INTERVAL_S = 2.0
PUBLISH_ALL_INTERVAL_S = 60.0


class LedgerStats(NamedTuple):
    """Counts of the ledger at one moment, by its own clock."""

    cluster: ClusterNumbers
    quotas: Mapping[str, tuple[QuotaNumbers, ...]]
    """Quotas by namespace; an empty entry means that limits were removed."""


@dataclass(eq=False)
class LedgerStatsPublisher:
    """Publish changed statistics, and all of them at intervals."""

    reader: PostgresLedgerStats
    bus: Bus
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _published: dict[str, tuple[QuotaNumbers, ...]] = field(default_factory=dict, init=False)
    _published_all_s: float = field(default_factory=lambda: float("-inf"), init=False)

    async def once(self) -> None:
        """Read the ledger and publish. Raises: Unavailable, Conflict."""
        await self.publish(await self.reader.read())

    async def publish(self, found: LedgerStats) -> None:
        """Publish statistics. Raises: Unavailable; then the rest follows the next time."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._published_all_s >= PUBLISH_ALL_INTERVAL_S:
            self._published.clear()
            self._published_all_s = now_s
        taken_at = found.cluster.taken_at
        for namespace, quotas in found.quotas.items():
            if self._published.get(namespace) == quotas:
                continue
            with self.bulkhead.item("ledger-stats", namespace):
                stats = NamespaceNumbers(namespace=namespace, taken_at=taken_at, quotas=quotas)
                await self._publish(ledger_quota_subject(namespace), stats, taken_at)
                self._published[namespace] = quotas
        await self._publish(LEDGER_CLUSTER_SUBJECT, found.cluster, taken_at)

    async def _publish(self, subject: str, payload: BaseModel, taken_at: datetime) -> None:
        message_id = f"{subject}/{taken_at.isoformat()}"
        await self.bus.publish(subject, payload, message_id=message_id)


SUBJECT = "hami.grants.snapshot.*"
QUEUE = "scheduler"


@dataclass(eq=False)
class GrantSnapshots:
    """Answer agents that ask for the grants of their node (`hami.grants.snapshot.*`)."""

    ledger: AllocationStore
    bulkhead: Bulkhead = field(default_factory=Bulkhead)

    async def respond(self, subject: str, body: bytes) -> GrantSnapshot:
        """Return the live grants of the subject's node. Raises: InvalidRequest."""
        request = read_of_node(GrantSnapshotRequest, subject, body, "snapshot request")
        now = datetime.now(UTC)
        try:
            live = await self.ledger.live(NodeName(request.node))
        except Unavailable:
            return GrantSnapshot(node=request.node, complete=False, taken_at=now)
        granted = [
            allocation
            for allocation in live
            if allocation.token is not None and allocation.state is not AllocationState.RESERVED
        ]
        grants: list[GrantState] = []
        for allocation in granted:
            with self.bulkhead.item("snapshots", str(allocation.id)):
                grant = grant_of(allocation)
                grants.append(GrantState(grant=grant, state=allocation.state))
        return GrantSnapshot(
            node=request.node,
            # One that can't be shown must not count as withdrawn.
            complete=len(grants) == len(granted),
            taken_at=now,
            grants=tuple(grants),
        )
