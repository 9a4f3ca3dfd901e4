"""Follows the ledger's events on the bus, so that this replica's view knows what others did."""

from __future__ import annotations

from hamicommon.bus.client import Message
from hamicommon.db.ledger import CardCounters
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.events import AllocationEvent, DeviceHealthEvent
from pydantic import ValidationError

from hami_scheduler.view import LedgerView

SUBJECT = "hami.events.v1.>"
_ALLOCATION = "hami.events.v1.allocation."
_DEVICE = "hami.events.v1.device."


class LedgerFollower:
    """Consumer of `hami.events.v1.>`; each replica has its own."""

    def __init__(self, view: LedgerView) -> None:
        self._view = view

    async def handle(self, message: Message) -> None:
        """Applies one event. Raises: InvalidRequest, Unavailable."""
        try:
            if message.subject.startswith(_ALLOCATION):
                event = AllocationEvent.model_validate_json(message.data)
                self._view.apply(
                    CardCounters(
                        node=card.node,
                        uuid=GpuUuid(card.uuid),
                        used_slots=card.used_slots,
                        used_memory_mib=card.used_memory_mib,
                        used_core_percent=card.used_core_percent,
                        version=card.device_version,
                    )
                    for card in event.counters
                )
            elif message.subject.startswith(_DEVICE):
                health = DeviceHealthEvent.model_validate_json(message.data)
                await self._view.refresh_node(NodeName(health.node))
        except ValidationError as exc:
            raise InvalidRequest(f"event is malformed: {exc}") from exc
