"""Publish refusals on the bus in the background, from a bounded queue; overflow is counted.

A refused pod is no object, so no Kubernetes event can belong to it; its owner (a ReplicaSet) gets
the API server's own. `hami.events.v1.admission.refused` is for everybody else.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from hamicommon.bus.client import Bus
from hamicommon.clipping import clip
from hamicommon.errors import Unavailable
from hamicommon.events import ADMISSION_REFUSED_SUBJECT, AdmissionRefused
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead

from hami_webhook.metrics import WebhookInstruments
from hami_webhook.review import AdmissionReview

logger = logging.getLogger(__name__)

MAX_WAITING = 256
"""Maximum number of queued refusals."""
MAX_GROUPS = 16
"""Maximum number of a user's groups that are kept."""


def refusal_of(
    review: AdmissionReview, *, reason: str, code: int, message: str, at: datetime
) -> AdmissionRefused:
    """Return an event about a refusal, for auditors, with shortened texts."""
    metadata, spec = _object(review.pod.get("metadata")), _object(review.pod.get("spec"))
    owner = _controller(metadata)
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or ""
    return AdmissionRefused(
        review_uid=clip(review.uid),
        namespace=clip(review.namespace),
        pod_name=clip(review.pod_name),
        user=clip(review.username),
        reason=reason,
        said=message,  # codespell:ignore said
        at=at,
        code=code,
        operation=clip(review.operation),
        subresource=clip(review.subresource),
        groups=tuple(map(clip, review.groups[:MAX_GROUPS])),
        service_account=clip(str(account)),
        generate_name=clip(str(metadata.get("generateName") or "")),
        owner_kind=clip(str(owner.get("kind") or "")),
        owner_name=clip(str(owner.get("name") or "")),
    )


def _controller(metadata: Json) -> Json:
    """Return the controlling owner, otherwise the first one."""
    owners = metadata.get("ownerReferences")
    listed = owners if isinstance(owners, list) else []
    found = [owner for owner in listed if isinstance(owner, dict)]
    controllers = [owner for owner in found if owner.get("controller") is True]
    return next(iter([*controllers, *found]), {})


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


class RefusalPublisher:
    """Queue refusals and publish them in order."""

    def __init__(self, instruments: WebhookInstruments) -> None:
        self._instruments = instruments
        # Counted with what the bus did not take.
        self._bulkhead = Bulkhead(lambda _loop: instruments.events_dropped.inc())
        self._waiting: asyncio.Queue[AdmissionRefused] = asyncio.Queue(MAX_WAITING)

    def take(self, refusal: AdmissionRefused) -> None:
        """Queue a refusal without waiting."""
        try:
            self._waiting.put_nowait(refusal)
        except asyncio.QueueFull:
            self._instruments.events_dropped.inc()

    async def run(self, bus: Bus) -> None:
        """Publish until cancelled; what the bus refuses is dropped and counted."""
        while True:
            refusal = await self._waiting.get()
            try:
                with self._bulkhead.item("refusals", refusal.review_uid):
                    await bus.publish(
                        ADMISSION_REFUSED_SUBJECT, refusal, message_id=refusal.review_uid
                    )
            except Unavailable as exc:
                self._instruments.events_dropped.inc()
                logger.debug("Failed to publish a refusal", extra={"error": str(exc)})
