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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import asyncpg
import orjson

from hamicommon.bus.client import Outgoing
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.database import DRIVER_ERRORS, Database
from hamicommon.process.bulkhead import Bulkhead

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


class OutboxPublisher(Protocol):
    """What the relay needs of the bus."""

    @property
    def connected(self) -> bool:
        """False: nothing can be published now."""
        ...

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        """Stores messages; for each None, or why it may not be stored."""
        ...


Listener = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Gets the subject and the payload of a fact."""


class OutboxRelay:
    """Moves rows from the outbox to the bus.

    `listener` is told what this relay announced: rows of other replicas are among them, and a bus
    connection does not hear its own messages.
    """

    def __init__(
        self, database: Database, bus: OutboxPublisher, *, bulkhead: Bulkhead | None = None
    ) -> None:
        self._bulkhead = bulkhead or Bulkhead()
        self._database = database
        self._bus = bus
        self.listener: Listener | None = None
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
        """Publishes one batch; returns how many rows left the outbox.

        The rows stay locked while they are published, which blocks nobody: only relays touch them,
        and those skip locked ones. Raises: Unavailable.
        """
        if not self._bus.connected:
            return 0
        async with self._database.transaction() as connection:
            rows = await connection.fetch(_TAKE)
            if not rows:
                return 0
            messages = self._messages(rows)
            errors = await self._bus.publish_all([message for _, message in messages])
            waiting = {
                row["id"]
                for (row, _), error in zip(messages, errors, strict=True)
                if error is not None
            }
            sent = {row["id"] for row, _ in messages} - waiting
            # A row that no message can be made of leaves too: it would come first for ever.
            await connection.execute(_DONE, [row["id"] for row in rows if row["id"] not in waiting])
        done = [row for row in rows if row["id"] in sent]
        self.published += len(done)
        await self._tell(done)
        for error in errors:
            if error is not None:
                raise error
        return len(rows)

    def _messages(self, rows: Sequence[Any]) -> list[tuple[Any, Outgoing]]:
        found: list[tuple[Any, Outgoing]] = []
        for row in rows:
            with self._bulkhead.item("outbox", str(row["id"])):
                found.append((row, _message(row)))
        return found

    async def _tell(self, rows: Sequence[Any]) -> None:
        if self.listener is not None:
            for row in rows:
                with self._bulkhead.item("outbox-listener", str(row["id"])):
                    await self.listener(row["subject"], row["payload"])

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(PRUNE_EVERY_S)
            try:
                async with self._database.connection() as connection:
                    await connection.execute(_PRUNE)
            except HamiError as exc:
                logger.warning("announced rows stay", extra={"error": str(exc)})

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


def _message(row: Any) -> Outgoing:
    return Outgoing(
        subject=row["subject"],
        data=orjson.dumps(row["payload"]),
        # The time stamp keeps ids apart when a ledger is made anew beside an old bus.
        message_id=f"outbox-{row['id']}-{row['created_at'].timestamp():.6f}",
        headers={"traceparent": row["traceparent"]} if row["traceparent"] else {},
    )


def _setter(event: asyncio.Event) -> Callable[[object], None]:
    def on_close(connection: object) -> None:
        del connection
        event.set()

    return on_close
