"""The relay between the ledger and the bus, on a real PostgreSQL."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hamicommon.bus.client import Bus, Outgoing
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.reader import read
from hamicommon.errors import Unavailable
from hamicommon.events import AllocationEvent
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.outbox import relay as relaying
from hamicommon.ledger.outbox.relay import (
    BATCH,
    MAX_REFUSALS,
    POLL_S,
    UNAVAILABLE_RETRY_S,
    OutboxRelay,
    Source,
)
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import NatsSettings, PostgresSettings
from hamilocal.servers.data import nats as nats_server
from pydantic import SecretStr

from tests.processes import running
from tests.waiting import eventually

SUBJECT = "hami.events.v1.device.failed"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Time:
    """The test moves it on."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Stream:
    """Stream that stores published messages, and refuses those in `refuses`."""

    connected = True

    def __init__(self, refuses: bytes = b"nothing") -> None:
        self.refuses = refuses
        self.messages: list[Outgoing] = []
        self.refused = 0

    @property
    def names(self) -> list[str]:
        return [orjson.loads(message.data)["name"] for message in self.messages]

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        answers: list[Unavailable | None] = []
        # Others get a chance to take the same rows.
        await asyncio.sleep(0)
        for message in messages:
            if self.refuses in message.data:
                answers.append(Unavailable("refused"))
                self.refused += 1
            else:
                self.messages.append(message)
                answers.append(None)
        return answers


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings = PostgresSettings(dsn=postgres_dsn)
    async with open_database(settings, application="test") as opened:
        yield opened


async def immediately() -> None:
    """Return: the process is idle."""


async def write(database: Database, *names: str) -> None:
    async with database.transaction() as connection:
        await connection.executemany(
            "INSERT INTO outbox (subject, payload, traceparent) VALUES ($1, $2, $3)",
            [(SUBJECT, {"name": name}, TRACE) for name in names],
        )


async def waiting(database: Database) -> list[str]:
    rows = await database.fetch("SELECT payload FROM outbox WHERE published_at IS NULL ORDER BY id")
    return [row["payload"]["name"] for row in rows]


async def test_rows_are_announced_once_in_order_with_their_trace(database: Database) -> None:
    stream = Stream()
    relay = OutboxRelay(database, stream, until_idle=immediately)
    await write(database, "a", "b")

    assert (await relay.relay_once(), await relay.relay_once()) == (2, 0)

    assert [message.data for message in stream.messages] == [b'{"name": "a"}', b'{"name": "b"}']
    assert {message.subject for message in stream.messages} == {SUBJECT}
    assert stream.messages[0].headers == {"traceparent": TRACE}
    assert await database.fetch("SELECT id FROM outbox") == []


async def test_a_row_that_was_not_stored_waits_under_the_same_id(database: Database) -> None:
    stream, clock = Stream(refuses=b"b"), Time()
    relay = OutboxRelay(database, stream, until_idle=immediately, clock=clock)
    await write(database, "a", "b", "c")
    await relay.relay_once()
    assert await waiting(database) == ["b"]

    stream.refuses = b"nothing"
    clock.now_s += POLL_S
    assert await relay.relay_once() == 1
    assert len({message.message_id for message in stream.messages}) == 3


async def test_rows_that_two_relays_take_at_once_go_out_under_one_id(database: Database) -> None:
    stream = Stream()
    relays = [OutboxRelay(database, stream, until_idle=immediately) for _ in range(2)]
    names = [f"n{number}" for number in range(BATCH)]
    await write(database, *names)

    await asyncio.gather(*(relay.relay_once() for relay in relays))

    assert len({message.message_id for message in stream.messages}) == BATCH
    assert len({message.data for message in stream.messages}) == BATCH
    assert await waiting(database) == []


async def list_parked(database: Database) -> list[str]:
    rows = await database.fetch("SELECT payload FROM outbox WHERE published_at = 'infinity'")
    return [row["payload"]["name"] for row in rows]


async def test_a_row_that_the_bus_refuses_for_ever_is_parked_and_readable(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    stream, clock = Stream(refuses=b"huge"), Time()
    relay = OutboxRelay(database, stream, until_idle=immediately, clock=clock)
    await write(database, "huge")
    attempts = 0

    for number in range(400):
        await write(database, f"n{number}")
        before = stream.refused
        await relay.relay_once()
        attempts += stream.refused - before
        clock.now_s += POLL_S

    assert attempts == MAX_REFUSALS
    assert await waiting(database) == []
    assert await list_parked(database) == ["huge"]
    assert (relay.parked, relay.published) == (1, 400)
    assert [record.message for record in caplog.records] == [
        "Gave up an event that NATS refuses to take"
    ]


async def test_rows_behind_many_that_the_bus_refuses_are_announced(database: Database) -> None:
    stream, clock = Stream(refuses=b"huge"), Time()
    relay = OutboxRelay(database, stream, until_idle=immediately, clock=clock)
    await write(database, *["huge"] * (2 * BATCH), "behind")

    for _ in range(10):
        with contextlib.suppress(Unavailable):
            await relay.relay_once()
        clock.now_s += POLL_S

    assert [message.data for message in stream.messages] == [b'{"name": "behind"}']


async def test_a_bus_that_stores_nothing_parks_nothing_and_its_return_is_noticed(
    database: Database,
) -> None:
    stream, clock = Stream(), Time()
    relay = OutboxRelay(database, stream, until_idle=immediately, clock=clock)
    await write(database, "before")
    await relay.relay_once()
    await write(database, "a", "b")
    stream.refuses = b"name"

    for _ in range(300):
        with contextlib.suppress(Unavailable):
            await relay.relay_once()
        clock.now_s += POLL_S
    assert await waiting(database) == ["a", "b"]

    stream.refuses = b"nothing"
    clock.now_s += UNAVAILABLE_RETRY_S
    await relay.relay_once()

    assert await waiting(database) == []
    assert relay.parked == 0


async def test_without_a_bus_nothing_is_taken(database: Database) -> None:
    stream = Stream()
    stream.connected = False
    await write(database, "a")

    assert await OutboxRelay(database, stream, until_idle=immediately).relay_once() == 0
    assert await waiting(database) == ["a"]


async def test_rows_around_a_poisonous_one_are_announced_and_it_is_parked(
    database: Database,
) -> None:
    stream, bulkhead = Stream(), Bulkhead()
    relay = OutboxRelay(database, stream, until_idle=immediately, bulkhead=bulkhead)
    await write(database, "a", "b", "c", "d")
    poison = relaying._message

    def message(source: Source, row: Any) -> Outgoing:
        if orjson.loads(row["data"])["name"] == "b":
            raise TypeError("Integer exceeds 64-bit range")
        return poison(source, row)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(relaying, "_message", message)
        await relay.relay_once()

    assert [sent.data for sent in stream.messages] == [
        b'{"name": "a"}',
        b'{"name": "c"}',
        b'{"name": "d"}',
    ]
    assert await waiting(database) == []
    assert await list_parked(database) == ["b"]
    assert bulkhead.failures == {"outbox": 1}
    assert relay.published == 3


GRANT = "00000000-0000-0000-0000-00000000000a"


async def write_events(database: Database, *states: str, reason: str = "") -> None:
    """A grant of one card, and its events, the first of which is `reserved`."""
    async with database.transaction() as connection:
        await connection.execute("INSERT INTO nodes (name) VALUES ('n')")
        await connection.execute(
            "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,"
            " healthy, ceiling_slots, ceiling_memory_mib, ceiling_core_percent, used_slots,"
            " used_memory_mib, version) VALUES ('GPU-1', 'n', 'NVIDIA', 0, 'A100', 10, 1000, 100,"
            " true, 10, 1000, 100, 1, 250, 7)"
        )
        await connection.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
            " traceparent) VALUES ($1, 'u', 'team', 'p', 1, 'n', 'bound', $2)",
            GRANT,
            TRACE,
        )
        await connection.execute(
            "INSERT INTO allocation_devices (allocation_id, container_index, position,"
            " container_name, role, device_uuid, vendor, memory_mib, core_percent)"
            " VALUES ($1, 0, 0, 'main', 'app', 'GPU-1', 'NVIDIA', 250, 10)",
            GRANT,
        )
        await connection.executemany(
            "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state,"
            " state, reason, published_at) VALUES ('u', $1, $2, $3, $4, $5, NULL)",
            [
                (number, GRANT, previous, state, reason)
                for number, (previous, state) in enumerate(pairwise([None, *states]), start=1)
            ],
        )


async def test_an_event_is_announced_from_its_own_row_and_marked(database: Database) -> None:
    stream = Stream()
    relay = OutboxRelay(database, stream, until_idle=immediately)
    await write_events(database, "bound", "allocated")

    assert (await relay.relay_once(), await relay.relay_once()) == (2, 0)

    bound, allocated = stream.messages
    assert bound.subject == "hami.events.v1.allocation.bound"
    assert bound.headers == {"traceparent": TRACE}
    event = read(AllocationEvent, bound.data, "event")
    assert (event.pod_uid, event.namespace, event.pod_name, event.node) == ("u", "team", "p", "n")
    assert (event.state, event.sequence, event.allocation_id) == ("bound", 1, GRANT)
    assert read(AllocationEvent, allocated.data, "event").sequence == 2
    rows = await database.fetch("SELECT published_at < now() AS done FROM allocation_events")
    assert [row["done"] for row in rows] == [True, True]


async def test_events_of_writers_that_announce_by_the_outbox_are_not_announced_twice(
    database: Database,
) -> None:
    stream = Stream()
    await write_events(database)
    await database.fetch(
        "INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state)"
        " VALUES ('u', 1, $1, 'reserved')",
        GRANT,
    )

    assert await OutboxRelay(database, stream, until_idle=immediately).relay_once() == 0


async def test_an_event_that_the_bus_refuses_is_parked_and_outlives_retention(
    database: Database,
) -> None:
    stream, clock = Stream(refuses=b"long reason"), Time()
    relay = OutboxRelay(database, stream, until_idle=immediately, clock=clock)
    await write_events(database, "reserved", reason="long reason")
    unpublished = "SELECT published_at IS NULL AS waits FROM allocation_events"
    forget = "SELECT hami_forget_grants(now(), 100) AS pods"
    for table, column in (("allocations", "reserved_at"), ("allocation_events", "at")):
        await _as_owner(database, f"UPDATE {table} SET {column} = now() - interval '1 year'")
    await _as_owner(
        database,
        "UPDATE allocations SET state = 'released', ended_at = now() - interval '360 days'",
    )

    assert (await database.fetchrow(forget))["pods"] == 0
    for _ in range(600):
        await write(database, "other")
        with contextlib.suppress(Unavailable):
            await relay.relay_once()
        clock.now_s += POLL_S
    assert not (await database.fetchrow(unpublished))["waits"]
    assert (await database.fetchrow(forget))["pods"] == 0

    await database.fetch("UPDATE allocation_events SET published_at = now()")
    assert (await database.fetchrow(forget))["pods"] == 1


async def _as_owner(database: Database, statements: str) -> None:
    """Run them with no trigger in their way."""
    async with database.transaction() as connection:
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(statements)


class Publishing:
    """A bus that signals when it publishes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.begun = asyncio.Event()

    @property
    def connected(self) -> bool:
        return self._bus.connected

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        self.begun.set()
        return await self._bus.publish_all(messages)


async def test_a_bus_that_hangs_holds_no_connection_of_the_ledger(
    postgres_dsn: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn), pool_max=1)
    with running(plan, die_with_parent=True) as server:
        async with (
            open_database(settings, application="test") as database,
            open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus,
        ):
            await eventually(lambda: bus.connected)
            await write_events(database, "reserved")
            publishing = Publishing(bus)
            relay = OutboxRelay(database, publishing, until_idle=immediately)
            os.kill(server.value.process.pid, signal.SIGSTOP)
            try:
                relaying_now = asyncio.create_task(relay.relay_once())
                await publishing.begun.wait()
                await database.ping()  # by the only connection of the pool
                assert not relaying_now.done()
                with pytest.raises(Unavailable):
                    await relaying_now
            finally:
                os.kill(server.value.process.pid, signal.SIGCONT)

            async def is_published() -> bool:
                with contextlib.suppress(Unavailable):
                    await relay.relay_once()
                return relay.published == 1

            await eventually(is_published)
