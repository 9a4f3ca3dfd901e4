"""The outbox: facts written in the transaction that made them, announced on the bus afterwards.

Ledger adapters insert rows beside the change that they describe; `OutboxRelay.run()` takes
unpublished ones with SKIP LOCKED, so any number of replicas may relay at once, and there is no
high-water mark that a slow transaction could slip under. Each message carries the row's id as
deduplication id. A row that the bus has stored is deleted: what happened is in the ledger's history
and on the bus, and a deletion writes a tenth of what a mark would.

A row that the bus refuses while it stores others (a payload larger than the bus takes) is tried
ever more rarely (`refused_rows.py`) and then parked: `published_at` is set to infinity, so that no
relay takes it and no pruning removes it (docs/operations.md). A bus that stores nothing parks no
row.

Waking: the process that committed calls `wake()`; other writers NOTIFY `hami_outbox`; polling backs
both up. The reservation itself does not NOTIFY, because Postgres takes one database-wide lock for
commits that do, which would put every grant's fsync in single file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from hamicommon.bus.client import Outgoing
from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.database import DRIVER_ERRORS, Database
from hamicommon.ledger.outbox.refused_rows import RefusedRows
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage
from hamicommon.process.periodic import every

logger = logging.getLogger(__name__)

CHANNEL = "hami_outbox"
BATCH = 128
POLL_S = 1.0
# The version before marked the rows that it had published, and goes on to during a roll-out.
KEEP_PUBLISHED_S = 3600
PRUNE_EVERY_S = 300.0

# The payload travels as PostgreSQL writes it: nothing here has to read it.
_TAKE = f"""
SELECT id, subject, payload::text AS data, traceparent, created_at FROM outbox
 WHERE published_at IS NULL AND id <> ALL($1::bigint[])
 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED
"""
_DONE = "DELETE FROM outbox WHERE id = ANY($1::bigint[])"
_PARK = "UPDATE outbox SET published_at = 'infinity' WHERE id = ANY($1::bigint[])"
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


Listener = Callable[[str, bytes], Awaitable[None]]
"""Gets the subject and the payload of a fact."""


class OutboxRelay:
    """Moves rows from the outbox to the bus.

    `listener` gets what this relay announced: rows of other replicas are among them, and a bus
    connection does not hear its own messages.
    """

    def __init__(
        self,
        database: Database,
        bus: OutboxPublisher,
        *,
        until_idle: Callable[[], Awaitable[None]],
        bulkhead: Bulkhead | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a relay that publishes nothing yet.

        Args:
            database: the ledger.
            bus: where facts go.
            until_idle: returns when the process has time to publish; commits that come meanwhile
                travel in the same batch. What must be quick (grants, locks) is not relayed.
            bulkhead: logs and counts rows that can't be announced.
            clock: seconds.
        """
        self._bulkhead = bulkhead or Bulkhead()
        self._database = database
        self._bus = bus
        self.listener: Listener | None = None
        self._until_idle = until_idle
        self._woken = asyncio.Event()
        self._refusals = RefusedRows(clock, retry_s=POLL_S)
        self.published = 0
        self.failures = 0
        self.parked = 0
        """Rows that this relay gave up; they stay in the table."""

    def wake(self) -> None:
        """Look for new rows."""
        self._woken.set()

    async def run(self) -> None:
        """Relays until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="outbox-listen")
            prune = every(PRUNE_EVERY_S, self._prune, name="outbox-prune")
            tasks.create_task(prune, name="outbox-prune")
            tasks.create_task(self._relay(), name="outbox-relay")

    async def _relay(self) -> None:
        outage = Outage(logger, failed="outbox not relayed, retrying", again="outbox relayed again")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            await self._until_idle()
            self._woken.clear()
            try:
                while await self.relay_once() == BATCH:
                    pass
                outage.worked()
            except HamiError as exc:
                self.failures += 1
                outage.failed(exc)
                await asyncio.sleep(POLL_S)

    async def relay_once(self) -> int:
        """Publishes one batch; returns how many rows it took.

        The rows stay locked while they are published, which blocks nobody: only relays touch them,
        and those skip locked ones. Raises: Unavailable, also when the bus stored none of them.
        """
        if not self._bus.connected:
            return 0
        async with self._database.transaction() as connection:
            rows = await connection.fetch(_TAKE, self._refusals.waiting())
            if not rows:
                return 0
            messages = self._messages(rows)
            errors = await self._bus.publish_all([message for _, message in messages])
            answers = [(row, error) for (row, _), error in zip(messages, errors, strict=True)]
            done = [row for row, error in answers if error is None]
            refused = {row["id"]: error for row, error in answers if error is not None}
            self._refusals.stored(row["id"] for row in done)
            # A row that no message can be made of is parked at once: it would come first for ever.
            parked = {row["id"] for row in rows} - {row["id"] for row, _ in answers}
            parked |= {row_id for row_id in refused if self._refusals.refused(row_id)}
            if done:
                await connection.execute(_DONE, [row["id"] for row in done])
            if parked:
                await connection.execute(_PARK, sorted(parked))
        self.published += len(done)
        self._report_parked([row for row in rows if row["id"] in parked], refused)
        await self._hand_on(done)
        if refused and not done:
            raise next(iter(refused.values()))
        return len(rows)

    def _report_parked(self, rows: Sequence[Any], errors: Mapping[int, Unavailable]) -> None:
        self.parked += len(rows)
        for row in rows:
            self._refusals.forget(row["id"])
            error = clip(str(errors.get(row["id"], "no message can be made of it")))
            logger.error(
                "outbox row parked, the bus refuses it",
                extra={"outbox_id": row["id"], "subject": row["subject"], "error": error},
            )

    def _messages(self, rows: Sequence[Any]) -> list[tuple[Any, Outgoing]]:
        found: list[tuple[Any, Outgoing]] = []
        for row in rows:
            with self._bulkhead.item("outbox", str(row["id"])):
                found.append((row, _message(row)))
        return found

    async def _hand_on(self, rows: Sequence[Any]) -> None:
        if self.listener is not None:
            for row in rows:
                with self._bulkhead.item("outbox-listener", str(row["id"])):
                    await self.listener(row["subject"], row["data"].encode())

    async def _prune(self) -> None:
        async with self._database.connection() as connection:
            await connection.execute(_PRUNE)

    async def _listen(self) -> None:
        """Keeps one connection that only listens; without it polling still works."""
        while True:
            with contextlib.suppress(*DRIVER_ERRORS, HamiError):
                await self._listen_once()
            await asyncio.sleep(POLL_S)

    async def _listen_once(self) -> None:
        connection = await self._database.connect()
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
        data=row["data"].encode(),
        # The time stamp keeps ids apart when a ledger is made again beside an old bus.
        message_id=f"outbox-{row['id']}-{row['created_at'].timestamp():.6f}",
        headers={"traceparent": row["traceparent"]} if row["traceparent"] else {},
    )


def _setter(event: asyncio.Event) -> Callable[[object], None]:
    def on_close(connection: object) -> None:
        del connection
        event.set()

    return on_close
