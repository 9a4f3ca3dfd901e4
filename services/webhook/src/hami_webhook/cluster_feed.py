"""Receive the cluster's state from the bus: inventories of nodes, and the ledger's numbers.

Input: `hami.inventory.v1.*` and `hami.ledger.v1.>`, each from its last message per subject, by
feeds that the scheduler opens. Output: `Knowledge` for each review. Stale or incomplete data counts
as unknown, and unknown data refuses no pod (docs/admission.md). Reviews wait for none of this.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from functools import partial

from hamicommon import events
from hamicommon.admission.idle_cards import IdleCards
from hamicommon.admission.quota import NamespaceQuotas, QuotaUse
from hamicommon.admission.verdicts import Knowledge
from hamicommon.bus.client import Bus, FeedKind, Message
from hamicommon.bus.consumer import LOG_LINES_PER_S
from hamicommon.bus.inventories import inventory_of
from hamicommon.bus.reader import read, read_of_node
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.process.rate_limit import RateLimit
from hamicommon.vendors.registry import Vendors

from hami_webhook.room import RoomThread

logger = logging.getLogger(__name__)

STALE_AFTER = timedelta(seconds=60)
"""The scheduler publishes its statistics every few seconds; older ones are not used."""
_QUOTA_PREFIX = events.ledger_quota_subject("")


class ClusterFollower:
    """Newest inventories and numbers; used by one event loop, except for the cards.

    `cards_thread` owns those.
    """

    def __init__(
        self, vendors: Vendors, now: Callable[[], datetime], cards_thread: RoomThread
    ) -> None:
        self._now = now
        self._cards_thread = cards_thread
        self._cards = IdleCards(vendors)
        self._lines = RateLimit(burst=1, per_s=LOG_LINES_PER_S)
        self._sequences: dict[str, tuple[str, int]] = {}
        self._quotas: dict[str, tuple[datetime, NamespaceQuotas]] = {}
        self._limits: dict[str, NamespaceQuotas] = {}
        self._ended: dict[str, datetime] = {}
        """Namespaces that have no quotas any more, and since when: older numbers may come late."""
        self._cluster: events.ClusterNumbers | None = None

    async def follow_inventories(self, bus: Bus) -> None:
        """Receive the nodes' inventories until cancelled."""
        await bus.follow_feed(FeedKind.INVENTORIES, self.take_inventory)

    async def follow_numbers(self, bus: Bus) -> None:
        """Receive the ledger's numbers until cancelled."""
        await bus.follow_feed(FeedKind.LEDGER_NUMBERS, self.take_numbers)

    async def take_inventory(self, message: Message) -> None:
        """Take one node's cards; log an inventory that can't be read, as the scheduler does."""
        with self._passing_over(message):
            await self._take_inventory(message)

    async def take_numbers(self, message: Message) -> None:
        """Take the ledger's numbers; ignore those older than the known ones."""
        with self._passing_over(message):
            await self._take_numbers(message)

    @contextlib.contextmanager
    def _passing_over(self, message: Message) -> Iterator[None]:
        try:
            yield
        except InvalidRequest as exc:
            left_out = self._lines.take(message.subject, at_s=time.monotonic())
            if left_out is not None:
                extra = {"subject": message.subject, "error": str(exc), "left_out": left_out}
                logger.warning("Skipped a message that can't be read", extra=extra)

    async def _take_inventory(self, message: Message) -> None:
        report = read_of_node(events.Inventory, message.subject, message.data, "inventory")
        cluster = self._cluster
        if cluster and report.node in cluster.gone_nodes and message.received_at < cluster.taken_at:
            return
        agent, sequence = self._sequences.get(report.node, ("", -1))
        if agent == report.agent_id and report.sequence <= sequence:
            return
        self._sequences[report.node] = (report.agent_id, report.sequence)
        inventory = inventory_of(report, received_at=message.received_at)
        await self._cards_thread.run(
            partial(
                self._cards.set_node,
                NodeName(report.node),
                inventory.devices,
                inventory.pair_scores,
            )
        )

    async def _take_numbers(self, message: Message) -> None:
        if message.subject.startswith(_QUOTA_PREFIX):
            self._take_quotas(read(events.NamespaceNumbers, message.data, "quota numbers"))
        elif message.subject == events.LEDGER_CLUSTER_SUBJECT:
            numbers = read(events.ClusterNumbers, message.data, "cluster numbers")
            if self._cluster is None or numbers.taken_at > self._cluster.taken_at:
                self._cluster = numbers
                await self._forget(numbers.gone_nodes)

    def _take_quotas(self, numbers: events.NamespaceNumbers) -> None:
        known = self._quotas.get(numbers.namespace)
        newest = self._ended.get(numbers.namespace) if known is None else known[0]
        if newest is not None and newest >= numbers.taken_at:
            return
        if not numbers.quotas:
            self._quotas.pop(numbers.namespace, None)
            self._limits.pop(numbers.namespace, None)
            self._ended[numbers.namespace] = numbers.taken_at
            return
        self._ended.pop(numbers.namespace, None)
        limits = {
            item.resource: QuotaUse(limit=item.limit, used=item.used) for item in numbers.quotas
        }
        self._quotas[numbers.namespace] = (numbers.taken_at, limits)
        self._limits[numbers.namespace] = limits

    async def _forget(self, gone_nodes: Collection[str]) -> None:
        """Forget deleted nodes, and namespaces whose older numbers would be stale now."""
        for node in self._sequences.keys() & set(gone_nodes):
            del self._sequences[node]
            await self._cards_thread.run(partial(self._cards.remove_node, NodeName(node)))
        stale_at = self._now() - STALE_AFTER
        self._ended = {name: at for name, at in self._ended.items() if at > stale_at}

    def knowledge(self) -> Knowledge:
        """Return the present knowledge of cards and quotas."""
        cluster = self._cluster
        if cluster is None:
            unknown = "the scheduler has not published its statistics"
            return Knowledge(cards_unknown=unknown, quotas_unknown=unknown)
        age = self._now() - cluster.taken_at
        if age > STALE_AFTER:
            unknown = f"the scheduler's numbers are {age.total_seconds():.0f} s old"
            return Knowledge(cards_unknown=unknown, quotas_unknown=unknown)
        reported, wanted = self._cards.nodes, cluster.agent_nodes
        return Knowledge(
            cards=self._cards if reported >= wanted else None,
            cards_unknown=f"{reported} of {wanted} nodes have reported their cards",
            foreign_vendors=frozenset(cluster.foreign_vendors),
            quotas=self._limits,
        )
