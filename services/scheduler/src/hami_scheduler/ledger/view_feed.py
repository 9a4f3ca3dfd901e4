"""Follows the ledger's events, so that this replica's view knows what others did.

They come from the bus (`handle`), and from this replica's own relay (`relayed`), which announces
others' changes too. One that is missed is found by the view's own comparison with the ledger.

Counters are in the events. Nodes of which anything else changed are read again (`run`), those of
the same moment together: a new node has an event for each of its cards, and a new cluster has
thousands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import islice

from hamicommon.bus.client import Message
from hamicommon.bus.reader import read
from hamicommon.domain.allocations import LIVE_STATES, AllocationState
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName
from hamicommon.errors import HamiError
from hamicommon.events import AllocationEvent, DeviceHealthEvent, event_subject
from hamicommon.ledger.model import CardCounters

from hami_scheduler.ledger.view import LedgerSnapshotCache

_DEVICE = event_subject("device", "")
_CHANGES = (
    AllocationState.RESERVED,
    *sorted(set(AllocationState) - LIVE_STATES),
    "moved",
    "shared",
)
"""Steps that take or give a card; most steps of a pod do neither."""
SUBJECTS = (*(event_subject("allocation", change) for change in _CHANGES), f"{_DEVICE}>")

# Lets the events of one report come together; no plan is worse for cards that failed so lately.
SETTLE_S = 0.02
MOST_NODES = 100
"""Read at once: some 10 ms of the event loop with 8 cards each."""


class LedgerFollower:
    """Follower of `SUBJECTS`; each replica has its own."""

    def __init__(
        self,
        view: LedgerSnapshotCache,
        *,
        on_reserved: Callable[[AllocationId], None] = lambda _: None,
    ) -> None:
        """`on_reserved` gets every reservation, this replica's own too."""
        self._view = view
        self._on_reserved = on_reserved
        # In the order of their events.
        self._changed: dict[NodeName, None] = {}
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Reads the nodes again whose cards changed, until cancelled."""
        while True:
            await self._woken.wait()
            await asyncio.sleep(SETTLE_S)
            self._woken.clear()
            while nodes := list(islice(self._changed, MOST_NODES)):
                for node in nodes:
                    del self._changed[node]
                # What can't be read now, the view's next refresh reads.
                with contextlib.suppress(HamiError):
                    await self._view.refresh_nodes(nodes)

    async def handle(self, message: Message) -> None:
        """Applies one event of another replica. Raises: InvalidRequest."""
        self._take(message.subject, message.data)

    async def relayed(self, subject: str, data: bytes) -> None:
        """Applies one event that this replica announced, whichever wrote it.

        Raises: InvalidRequest when it can't be read.
        """
        self._take(subject, data)

    def _take(self, subject: str, data: bytes) -> None:
        if subject in SUBJECTS:
            self._apply(read(AllocationEvent, data, "event"))
        elif subject.startswith(_DEVICE):
            self._changed[NodeName(read(DeviceHealthEvent, data, "event").node)] = None
            self._woken.set()

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
