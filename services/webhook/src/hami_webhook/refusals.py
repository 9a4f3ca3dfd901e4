"""Publishes refusals on the bus, beside the answers, from a bounded queue; overflow is counted.

A refused pod is no object, so no Kubernetes event can belong to it; its owner (a ReplicaSet) gets
the API server's own. `hami.events.v1.admission.refused` is for everybody else.
"""

from __future__ import annotations

import asyncio
import logging

from hamicommon.bus.client import Bus
from hamicommon.errors import Unavailable
from hamicommon.events import ADMISSION_REFUSED_SUBJECT, AdmissionRefused
from hamicommon.process.bulkhead import Bulkhead

from hami_webhook.metrics import WebhookInstruments

logger = logging.getLogger(__name__)

MOST_WAITING = 256
"""A controller that makes a refused pod again and again must not fill our memory."""


class RefusalPublisher:
    """Takes refusals at once and publishes them in order."""

    def __init__(self, instruments: WebhookInstruments) -> None:
        self._instruments = instruments
        # Counted with what the bus did not take.
        self._bulkhead = Bulkhead(lambda _loop: instruments.events_dropped.inc())
        self._waiting: asyncio.Queue[AdmissionRefused] = asyncio.Queue(MOST_WAITING)

    def take(self, refusal: AdmissionRefused) -> None:
        """Notes one; never waits."""
        try:
            self._waiting.put_nowait(refusal)
        except asyncio.QueueFull:
            self._instruments.events_dropped.inc()

    async def run(self, bus: Bus) -> None:
        """Publishes until cancelled; what the bus does not take is dropped and counted."""
        while True:
            refusal = await self._waiting.get()
            try:
                with self._bulkhead.item("refusals", refusal.review_uid):
                    await bus.publish(
                        ADMISSION_REFUSED_SUBJECT, refusal, message_id=refusal.review_uid
                    )
            except Unavailable as exc:
                self._instruments.events_dropped.inc()
                logger.debug("refusal not published", extra={"error": str(exc)})
