"""Store refusals at admission from the bus in the ledger, each once.

The webhook publishes its refusals (`hami.events.v1.admission.refused`), and the bus keeps them for
a day. A refusal is acknowledged when Postgres has stored it. The scheduler does not store them,
because a user who is refused a thousand times a second must not slow decisions down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from hamicommon.bus.reader import read
from hamicommon.clipping import clip
from hamicommon.errors import Conflict, Unavailable
from hamicommon.events import AdmissionRefused

from hami_metrics.instruments import MetricsInstruments


class RefusalStore(Protocol):
    """Store of refusals; methods may raise Unavailable or Conflict."""

    async def write(self, refusal: AdmissionRefusal) -> bool:
        """Store a refusal; return False if it was stored before."""

    async def forget(self, before: datetime) -> int:
        """Delete refusals before a time; return the number of rows."""


class RefusalHistory:
    """History of refusals."""

    def __init__(self, store: RefusalStore, instruments: MetricsInstruments) -> None:
        self._store = store
        self._instruments = instruments

    async def ingest(self, body: bytes) -> None:
        """Store one refusal idempotently.

        Raises: InvalidRequest (dead letter), Unavailable (the bus delivers it again).
        """
        refusal = refusal_of(read(AdmissionRefused, body, "admission refusal"))
        try:
            new = await self._store.write(refusal)
        except (Unavailable, Conflict) as exc:
            self._instruments.store_failures.labels("refusals").inc()
            # Another replica has its turn for longer than a moment: no fault of the message.
            raise Unavailable(str(exc)) from exc
        self._instruments.refusals.labels("stored" if new else "repeated").inc()

    async def keep(self, days: int, *, now: datetime) -> int:
        """Delete refusals older than `days` (0: none); return the number of rows."""
        return await self._store.forget(now - timedelta(days=days)) if days else 0


MAX_GROUPS = 16
MAX_GROUP_LENGTH = 128
MAX_MESSAGE_LENGTH = 512
"""Maximum characters of a user's groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRefusal:
    """Refusal by admission, with bounded texts, because refused users choose them."""

    review_uid: str
    """Id of the review, by which a repeated delivery is recognised."""
    at: datetime
    username: str
    groups: Sequence[str]
    namespace: str
    pod_name: str
    """Name of the pod, or the beginning of a generated name and a star."""
    owner_kind: str
    """Kind of the pod's controller; empty: none, or unknown from an older webhook."""
    owner_name: str
    service_account: str
    operation: str
    """`CREATE`, or `UPDATE` with the subresource."""
    reason: str
    message: str


def refusal_of(event: AdmissionRefused) -> AdmissionRefusal:
    """Convert the event, shortening its texts."""
    return AdmissionRefusal(
        review_uid=event.review_uid,
        at=event.at,
        username=clip(event.user),
        groups=tuple(clip(group, MAX_GROUP_LENGTH) for group in event.groups[:MAX_GROUPS]),
        namespace=clip(event.namespace),
        pod_name=clip(event.pod_name),
        owner_kind=clip(event.owner_kind),
        owner_name=clip(event.owner_name),
        service_account=clip(event.service_account),
        operation=clip(f"{event.operation} {event.subresource}".strip()),
        reason=clip(event.reason),
        message=clip(event.said, MAX_MESSAGE_LENGTH),  # codespell:ignore said
    )
