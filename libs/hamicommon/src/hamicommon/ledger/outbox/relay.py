"""Publish facts of the ledger on the bus after the transactions that wrote them.

Writers leave a row unpublished; `OutboxRelay.run()` reads such rows, publishes them outside of any
transaction, so that a hanging bus holds no connection of the pool, and then marks them. If a relay
ends in between, they are published again under the same deduplication id: delivery is at least
once. There is no high-water mark that a slow transaction could slip under.

A row that the bus refuses while it stores others (a payload larger than the bus accepts) is retried
ever more rarely (`RefusedRows`) and then parked: `published_at` is set to infinity, so that no
relay reads it and no retention removes it (docs/operations.md). While the bus stores nothing, no
row is parked.

The process that committed calls `wake()`; other writers NOTIFY `hami_outbox`; polling backs both
up. The reservation itself does not NOTIFY, because Postgres takes one database-wide lock for
commits that do, which would serialize the fsyncs of all grants.

`allocation_events` is its own outbox. `outbox` has the health changes of cards, and the facts of
versions before migration 0034.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cachetools import FIFOCache

from hamicommon.bus.client import Outgoing
from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.ledger.database import DRIVER_ERRORS, Database
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage

# A row is parked after so many refusals, each while others were stored; with doubled waits between
# them that takes four minutes, in which a bus that is short of something recovers.
MAX_REFUSALS = 8
# While the bus stores nothing at all, a row waits no longer than this for its return.
UNAVAILABLE_RETRY_S = 15.0
# Refused rows that a relay remembers; a forgotten one is counted from 0 again.
MAX_ROWS = 10_000


@dataclass(slots=True)
class _Refusal:
    """Failed attempts to publish one row, and how many failed because of the row itself."""

    attempts: int
    counted: int
    stored_before: int
    due_at: float


RowKey = tuple[str, int]
"""Table and id of a row."""


class RefusedRows:
    """Rows that the bus refused, and when each is tried again.

    A refusal counts against the row when the bus has stored another one since the attempt before.
    """

    def __init__(self, clock: Callable[[], float], *, retry_s: float) -> None:
        """`clock` returns seconds; a row is retried after `retry_s`, then after growing pauses."""
        self._clock = clock
        self._retry_s = retry_s
        self._stored = self._stored_before = 0
        self._rows: FIFOCache[RowKey, _Refusal] = FIFOCache(MAX_ROWS)

    def waiting_ids(self, table: str) -> list[int]:
        """Return ids of the table's rows that are not due yet."""
        now = self._clock()
        return [
            row_id
            for (owner, row_id), refusal in self._rows.items()
            if owner == table and refusal.due_at > now
        ]

    def on_stored(self, keys: Iterable[RowKey]) -> None:
        """Record which rows of a batch the bus stored; if there are any, the bus is available."""
        self._stored_before = self._stored
        for key in keys:
            self._rows.pop(key, None)
            self._stored += 1
        if self._stored > self._stored_before:
            for refusal in self._rows.values():
                if not refusal.counted:
                    refusal.due_at = 0.0

    def on_refused(self, key: RowKey) -> bool:
        """Record a refused row, after `on_stored` of its batch; return True to give it up."""
        refusal = self._rows.setdefault(key, _Refusal(0, 0, self._stored_before, 0.0))
        blamed = self._stored > refusal.stored_before
        refusal.attempts += 1
        refusal.counted += blamed
        refusal.stored_before = self._stored
        wait_s = self._retry_s * 2.0 ** min(refusal.attempts - 1, MAX_REFUSALS)
        refusal.due_at = self._clock() + (wait_s if blamed else min(wait_s, UNAVAILABLE_RETRY_S))
        return refusal.counted >= MAX_REFUSALS

    def forget(self, key: RowKey) -> None:
        """Forget a row that was given up."""
        self._rows.pop(key, None)


BATCH = 128


@dataclass(frozen=True, slots=True)
class Source:
    """A table with facts to publish; each statement takes row ids as $1."""

    table: str
    take: str
    """Statement that selects rows to publish, except those of $1."""
    mark_published: str
    park: str


# Without counters of cards: the one scheduler that is active has them from its own commits.
EVENTS = Source(
    table="allocation_events",
    take=f"""
SELECT e.id, 'hami.events.v1.allocation.' || e.state AS subject,
       jsonb_build_object(
           'version', 1, 'event_id', e.id, 'allocation_id', a.id::text, 'pod_uid', a.pod_uid,
           'namespace', a.namespace, 'pod_name', a.pod_name, 'node', a.node, 'state', e.state,
           'sequence', e.sequence, 'reason', e.reason, 'at', e.at,
           'counters', '[]'::jsonb)::text AS data,
       a.traceparent, e.at AS created_at
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.published_at IS NULL AND e.id <> ALL($1::bigint[])
 ORDER BY e.id LIMIT {BATCH}
""",
    mark_published="UPDATE allocation_events SET published_at = now() WHERE id = ANY($1::bigint[])",
    park="UPDATE allocation_events SET published_at = 'infinity' WHERE id = ANY($1::bigint[])",
)
OUTBOX = Source(
    table="outbox",
    # The payload travels as PostgreSQL writes it: nothing here has to read it.
    take=f"""
SELECT id, subject, payload::text AS data, traceparent, created_at FROM outbox
 WHERE published_at IS NULL AND id <> ALL($1::bigint[])
 ORDER BY id LIMIT {BATCH}
""",
    mark_published="DELETE FROM outbox WHERE id = ANY($1::bigint[])",
    park="UPDATE outbox SET published_at = 'infinity' WHERE id = ANY($1::bigint[])",
)
SOURCES = (EVENTS, OUTBOX)


logger = logging.getLogger(__name__)

CHANNEL = "hami_outbox"
POLL_S = 1.0


class OutboxPublisher(Protocol):
    """The bus as the relay uses it."""

    @property
    def connected(self) -> bool:
        """Whether facts can be published now."""
        ...

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        """Store messages; for each None, or why it may not be stored."""
        ...


class OutboxRelay:
    """Publish unpublished rows of the ledger."""

    def __init__(
        self,
        database: Database,
        bus: OutboxPublisher,
        *,
        until_idle: Callable[[], Awaitable[None]],
        bulkhead: Bulkhead | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a relay; `run` starts it.

        Args:
            database: the ledger.
            bus: where facts go.
            until_idle: returns when the process has time to publish; commits that come until
                then travel in the same batch. What must be quick (grants, locks) is not relayed.
            bulkhead: logs and counts rows that can't be announced.
            clock: seconds.
        """
        self._bulkhead = bulkhead or Bulkhead()
        self._database = database
        self._bus = bus
        self._until_idle = until_idle
        self._woken = asyncio.Event()
        self._refusals = RefusedRows(clock, retry_s=POLL_S)
        self.published = 0
        self.failures = 0
        self.parked = 0
        """Rows that this relay gave up; they stay in the table."""

    def wake(self) -> None:
        """Make the relay look for new rows now."""
        self._woken.set()

    async def run(self) -> None:
        """Publish rows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen(), name="outbox-listen")
            tasks.create_task(self._relay(), name="outbox-relay")

    async def _relay(self) -> None:
        outage = Outage(
            logger,
            failed="Failed to relay the outbox, retrying",
            again="Relaying the outbox again",
        )
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._woken.wait()
            await self._until_idle()
            self._woken.clear()
            try:
                while await self.relay_once() == BATCH:
                    pass
                outage.on_success()
            except HamiError as exc:
                self.failures += 1
                outage.on_failure(exc)
                await asyncio.sleep(POLL_S)

    async def relay_once(self) -> int:
        """Publish one batch of each table; return the number of rows in the largest batch.

        Raises: Unavailable, also when the bus stored none of them.
        """
        if not self._bus.connected:
            return 0
        counts: list[int] = []
        errors: list[Unavailable] = []
        for source in SOURCES:
            try:
                counts.append(await self._relay_batch(source))
            except Unavailable as exc:
                errors.append(exc)
        if errors and not any(counts):
            raise errors[0]
        return max(counts)

    async def _relay_batch(self, source: Source) -> int:
        rows = await self._database.fetch(source.take, self._refusals.waiting_ids(source.table))
        if not rows:
            return 0
        messages = self._messages(source, rows)
        errors = await self._bus.publish_all([message for _, message in messages])
        answers = [(row, error) for (row, _), error in zip(messages, errors, strict=True)]
        done = [row for row, error in answers if error is None]
        refused = {row["id"]: error for row, error in answers if error is not None}
        self._refusals.on_stored((source.table, row["id"]) for row in done)
        # A row that no message can be made of is parked immediately: it would come first forever.
        parked = {row["id"] for row in rows} - {row["id"] for row, _ in answers}
        parked |= {
            row_id for row_id in refused if self._refusals.on_refused((source.table, row_id))
        }
        if done:
            await self._database.fetch(source.mark_published, [row["id"] for row in done])
        if parked:
            await self._database.fetch(source.park, sorted(parked))
        self.published += len(done)
        self._report_parked(source, [row for row in rows if row["id"] in parked], refused)
        if refused and not done:
            raise next(iter(refused.values()))
        return len(rows)

    def _report_parked(
        self, source: Source, rows: Sequence[Any], errors: Mapping[int, Unavailable]
    ) -> None:
        self.parked += len(rows)
        for row in rows:
            self._refusals.forget((source.table, row["id"]))
            error = clip(str(errors.get(row["id"], "it can't be encoded as a message")))
            logger.error(
                "Gave up an event that NATS refuses to take",
                extra={
                    "table": source.table,
                    "row": row["id"],
                    "subject": row["subject"],
                    "error": error,
                },
            )

    def _messages(self, source: Source, rows: Sequence[Any]) -> list[tuple[Any, Outgoing]]:
        found: list[tuple[Any, Outgoing]] = []
        for row in rows:
            with self._bulkhead.item("outbox", f"{source.table} {row['id']}"):
                found.append((row, _message(source, row)))
        return found

    async def _listen(self) -> None:
        """Listen for notifications on a separate connection; without it, polling still works."""
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


def _message(source: Source, row: Any) -> Outgoing:
    return Outgoing(
        subject=row["subject"],
        data=row["data"].encode(),
        # The time stamp keeps ids apart when a ledger is recreated beside an old bus.
        message_id=f"{source.table}-{row['id']}-{row['created_at'].timestamp():.6f}",
        headers={"traceparent": row["traceparent"]} if row["traceparent"] else {},
    )


def _setter(event: asyncio.Event) -> Callable[[object], None]:
    def on_close(connection: object) -> None:
        del connection
        event.set()

    return on_close
