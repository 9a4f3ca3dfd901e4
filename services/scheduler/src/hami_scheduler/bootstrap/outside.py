"""The outside world as one value: what `bootstrap.py` opens and `wiring/` builds on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from hamicommon.bus.client import Bus
from hamicommon.grants.grant import Grant
from hamicommon.k8s.client import KubeApi
from hamicommon.ledger.outbox import OutboxRelay

from hami_scheduler.bus.auth import Logins
from hami_scheduler.bus.heartbeats import AgentMarks
from hami_scheduler.bus.ledger_stats import LedgerStatsReader
from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.ports import (
    AllocationStore,
    CardReader,
    DecisionLog,
    DriftJournal,
    GrantAnnouncer,
    InventoryStore,
    LedgerReader,
    NodeApi,
    NodeLock,
    NodeWitness,
    PodApi,
    PodEvents,
    QuotaStore,
)
from hami_scheduler.ports.access import Access
from hami_scheduler.ports.queries import Queries
from hami_scheduler.reconcile.retention import Retention


class LedgerStore(AllocationStore, LedgerReader, Protocol):
    """The ledger of grants, written and read."""


class InventoryLedger(InventoryStore, CardReader, AgentMarks, Protocol):
    """Nodes and cards, written and read."""


class LedgerQueries(Queries, Protocol):
    """Answers for people, and how far the outbox lags."""

    async def outbox_lag(self) -> tuple[float, float]:
        """(rows, seconds)."""
        ...


class ListeningLock(NodeLock, Protocol):
    """A node lock that hears of releases by other replicas."""

    fallbacks: int

    async def listen(self) -> None:
        """Runs until cancelled."""
        ...


class QueuedEvents(PodEvents, Protocol):
    """Pod events with the worker that writes them."""

    dropped: int

    async def run(self) -> None:
        """Runs until cancelled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """Everything that `bootstrap.py` opened."""

    store: LedgerStore
    inventory: InventoryLedger
    quotas: QuotaStore
    decisions: DecisionLog
    journal: DriftJournal
    retention: Retention
    queries: LedgerQueries
    ping: Callable[[], Awaitable[None]]
    relay: OutboxRelay
    lock: ListeningLock
    pods: PodApi
    nodes: NodeApi
    events: QueuedEvents
    aside: DeferredWrites
    grants: GrantAnnouncer
    witness: NodeWitness
    sign: Callable[[Grant], str]
    read_signed: Callable[[str], Grant]
    """Raises: InvalidRequest when it was not signed by `sign`."""
    bus: Bus
    api: KubeApi
    numbers: LedgerStatsReader | None = None
    """Of the ledger, for the bus; None: they are not told."""
    access: Access | None = None
    """Who may ask on the operators' port; None: it is not served."""
    logins: Logins | None = None
    """Answers the bus server about node-agents, where it is so configured."""
