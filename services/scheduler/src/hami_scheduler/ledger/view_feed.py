"""Follows the ledger's events, so that this replica's view knows what others did.

They come from the bus (`handle`), and from this replica's own relay (`relayed`), which announces
others' changes too. One that is missed is found by the view's own comparison with the ledger.
"""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.bus.client import Message
from hamicommon.bus.reader import read
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import Unavailable
from hamicommon.events import AllocationEvent, DeviceHealthEvent, event_subject
from hamicommon.ledger.model import CardCounters

from hami_scheduler.ledger.view import LedgerSnapshotCache

SUBJECT = "hami.events.v1.>"
_ALLOCATION = "hami.events.v1.allocation."
_DEVICE = "hami.events.v1.device."
_WITHOUT_COUNTERS = frozenset(
    event_subject("allocation", state)
    for state in (AllocationState.BINDING, AllocationState.BOUND, AllocationState.ALLOCATED)
)
"""Steps on the way of every pod that neither take nor give a card."""


class LedgerFollower:
    """Follower of `hami.events.v1.>`; each replica has its own."""

    def __init__(
        self,
        view: LedgerSnapshotCache,
        *,
        on_reserved: Callable[[AllocationId], None] = lambda _: None,
    ) -> None:
        """`on_reserved` gets every reservation, this replica's own too."""
        self._view = view
        self._on_reserved = on_reserved

    async def handle(self, message: Message) -> None:
        """Applies one event of another replica. Raises: InvalidRequest, Unavailable."""
        if message.subject in _WITHOUT_COUNTERS:
            return
        if message.subject.startswith(_ALLOCATION):
            self._apply(read(AllocationEvent, message.data, "event"))
        elif message.subject.startswith(_DEVICE):
            health = read(DeviceHealthEvent, message.data, "event")
            await self._view.refresh_node(NodeName(health.node))

    async def relayed(self, subject: str, data: bytes) -> None:
        """Applies one event that this replica announced, whichever wrote it.

        Raises: InvalidRequest when it can't be read.
        """
        if subject in _WITHOUT_COUNTERS:
            return
        if subject.startswith(_ALLOCATION):
            self._apply(read(AllocationEvent, data, "event"))
        elif subject.startswith(_DEVICE):
            node = NodeName(read(DeviceHealthEvent, data, "event").node)
            try:
                await self._view.refresh_node(node)
            except Unavailable:
                self._view.doubt(node)

    def _apply(self, event: AllocationEvent) -> None:
        if event.state == AllocationState.RESERVED:
            self._on_reserved(AllocationId(event.allocation_id))
        self._view.apply(
            CardCounters(
                node=card.node,
                uuid=GpuUuid(card.uuid),
                used_slots=card.used_slots,
                used_memory_mib=card.used_memory_mib,
                used_core_percent=card.used_core_percent,
                version=card.device_version,
                holdings=card.holdings,
            )
            for card in event.counters
        )
