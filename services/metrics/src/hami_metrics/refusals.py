"""The use case of refusals at admission: from the bus into the ledger, each counted once.

The webhook publishes what it refuses (`hami.events.v1.admission.refused`), which the bus keeps for
a day. A refusal is acknowledged when Postgres has it. Here and not in the scheduler, because a user
who is refused a thousand times a second must not slow decisions down.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from hamicommon.bus.reader import read
from hamicommon.errors import Conflict, Unavailable
from hamicommon.events import AdmissionRefused

from hami_metrics.domain.refusals import AdmissionRefusal, refusal_of
from hami_metrics.instruments import MetricsInstruments


class RefusalStore(Protocol):
    """Store of refusals. Raises: Unavailable, Conflict."""

    async def write(self, refusal: AdmissionRefusal) -> bool:
        """Store one refusal; False: it was stored before."""

    async def forget(self, before: datetime) -> int:
        """Delete refusals before a time; return the number of rows."""


class RefusalHistory:
    """Storing of refusals."""

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
        """Delete what is older than `days`; 0 keeps all. Returns how many rows."""
        return await self._store.forget(now - timedelta(days=days)) if days else 0
