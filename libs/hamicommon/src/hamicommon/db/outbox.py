"""The outbox: facts written in the transaction that made them, announced on the bus afterwards.

Ledger adapters insert rows beside the change they tell of; `OutboxRelay.run()` takes unpublished
ones with SKIP LOCKED, so any number of replicas may relay at once, and there is no high-water mark
that a slow transaction could slip under. Each message carries the row's id as deduplication id.

Waking: the process that committed calls `wake()`; other writers NOTIFY `hami_outbox`; polling backs
both up. The reservation itself does not NOTIFY, because Postgres takes one database-wide lock for
commits that do, which would put every grant's fsync in single file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import asyncpg
from opentelemetry import context as otel_context
from pydantic import BaseModel, RootModel

from hamicommon import telemetry
from hamicommon.db.database import DRIVER_ERRORS, Database
from hamicommon.errors import HamiError, Unavailable

logger = logging.getLogger(__name__)

CHANNEL = "hami_outbox"
BATCH = 128
POLL_S = 1.0
# Lets commits travel in batches. A view of another replica that is this much older plans again at
# worst; what must be quick (grants, locks) does not go through the outbox.
COALESCE_S = 0.025
# Published rows stay this long for people who look; the bus keeps its own history.
KEEP_PUBLISHED_S = 3600
PRUNE_EVERY_S = 300.0

_TAKE = f"""
SELECT id, subject, payload, traceparent, created_at FROM outbox WHERE published_at IS NULL
 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
"""
_DONE = "UPDATE outbox SET published_at = now() WHERE id = ANY($1::bigint[])"
_PRUNE = f"""
DELETE FROM outbox WHERE published_at < now() - interval '{KEEP_PUBLISHED_S} seconds'
"""


class Publisher(Protocol):
    """What the relay needs of the bus."""

    @property
    def connected(self) -> bool:
        """False: nothing can be published now."""
        ...

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        """Stores one message. Raises: Unavailable."""
        ...


class Fact(RootModel[dict[str, Any]]):
    """A payload as it was written; its model validated it then."""


class OutboxRelay:
    """Moves rows from the outbox to the bus."""

    def __init__(self, database: Database, bus: Publisher) -> None:
        self._database = database
        self._bus = bus
        self._woken = asyncio.Event()
        self.published = 0
        self.failures = 0

    def wake(self) -> None:
        """Says that there may be new rows."""
        self._woken.set()

    async def run(self) -> None:
        """Relays until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="outbox-listen")
            tasks.create_task(self._prune(), name="outbox-prune")
            tasks.create_task(self._relay(), name="outbox-relay")

    async def _relay(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            await asyncio.sleep(COALESCE_S)
            self._woken.clear()
            try:
                while await self.relay_once() == BATCH:
                    pass
            except HamiError as exc:
                self.failures += 1
                logger.warning("outbox waits", extra={"error": str(exc)})
                await asyncio.sleep(POLL_S)

    async def relay_once(self) -> int:
        """Publishes one batch; returns how many rows were announced.

        The rows stay locked while they are published, which blocks nobody: only relays touch them,
        and those skip locked ones. Raises: Unavailable.
        """
        if not self._bus.connected:
            return 0
        async with self._database.transaction() as connection:
            rows = await connection.fetch(_TAKE)
            if not rows:
                return 0
            results = await asyncio.gather(
                *(self._publish(row) for row in rows), return_exceptions=True
            )
            done = [row["id"] for row, error in zip(rows, results, strict=True) if error is None]
            await connection.execute(_DONE, done)
        self.published += len(done)
        for error in results:
            if isinstance(error, BaseException):
                raise error
        return len(done)

    async def _publish(self, row: Any) -> None:
        token = otel_context.attach(telemetry.extract({"traceparent": row["traceparent"]}))
        try:
            # The time stamp keeps ids apart when a ledger is made anew beside an old bus.
            message_id = f"outbox-{row['id']}-{row['created_at'].timestamp():.6f}"
            await self._bus.publish(row["subject"], Fact(row["payload"]), message_id=message_id)
        finally:
            otel_context.detach(token)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY_S)
            with contextlib.suppress(Unavailable):
                async with self._database.connection() as connection:
                    await connection.execute(_PRUNE)

    async def _listen(self) -> None:
        """Keeps one connection that only listens; without it polling still works."""
        while True:
            with contextlib.suppress(*DRIVER_ERRORS):
                await self._listen_once()
            await asyncio.sleep(POLL_S)

    async def _listen_once(self) -> None:
        connection = await asyncpg.connect(self._database.dsn, timeout=5)
        closed = asyncio.Event()
        connection.add_termination_listener(_setter(closed))
        try:
            await connection.add_listener(CHANNEL, lambda *_: self.wake())
            await closed.wait()
        finally:
            await connection.close(timeout=1)


def _setter(event: asyncio.Event) -> Callable[[object], None]:
    def on_close(connection: object) -> None:
        del connection
        event.set()

    return on_close
