"""The relay between the outbox and the bus, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from hamicommon.bus.client import Outgoing
from hamicommon.errors import Unavailable
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.outbox import relay as relaying
from hamicommon.ledger.outbox.refused_rows import AWAY_MOST_S, MOST_REFUSALS
from hamicommon.ledger.outbox.relay import BATCH, POLL_S, OutboxRelay
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import PostgresSettings

SUBJECT = "hami.events.v1.allocation.reserved"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Time:
    """The test moves it on."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Stream:
    """Keeps what was published; refuses what `refuses` names."""

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
    seen: list[str] = []

    async def listen(subject: str, data: bytes) -> None:
        assert subject == SUBJECT
        seen.append(orjson.loads(data)["name"])

    relay.listener = listen
    await relay.relay_once()
    assert await waiting(database) == ["b"]
    assert seen == ["a", "c"]

    stream.refuses = b"nothing"
    clock.now_s += POLL_S
    assert await relay.relay_once() == 1
    assert seen == ["a", "c", "b"]
    assert len({message.message_id for message in stream.messages}) == 3


async def test_two_relays_share_the_rows_without_announcing_one_twice(database: Database) -> None:
    stream = Stream()
    relays = [OutboxRelay(database, stream, until_idle=immediately) for _ in range(2)]
    names = [f"n{number}" for number in range(2 * BATCH)]
    await write(database, *names)

    counts = await asyncio.gather(*(relay.relay_once() for relay in relays))

    assert sum(counts) == len({message.data for message in stream.messages}) == 2 * BATCH
    assert len(stream.messages) == 2 * BATCH


async def parked(database: Database) -> list[str]:
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

    assert attempts == MOST_REFUSALS
    assert await waiting(database) == []
    assert await parked(database) == ["huge"]
    assert (relay.parked, relay.published) == (1, 400)
    assert [record.message for record in caplog.records] == [
        "outbox row parked, the bus refuses it"
    ]
    await database.fetch(relaying._PRUNE)
    assert await parked(database) == ["huge"]


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
    clock.now_s += AWAY_MOST_S
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
    seen: list[str] = []

    async def listen(subject: str, data: bytes) -> None:
        del subject
        name = orjson.loads(data)["name"]
        if name == "c":
            raise ValueError("odd")
        seen.append(name)

    relay.listener = listen
    poison = relaying._message

    def message(row: Any) -> Outgoing:
        if orjson.loads(row["data"])["name"] == "b":
            raise TypeError("Integer exceeds 64-bit range")
        return poison(row)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(relaying, "_message", message)
        await relay.relay_once()

    assert [sent.data for sent in stream.messages] == [
        b'{"name": "a"}',
        b'{"name": "c"}',
        b'{"name": "d"}',
    ]
    assert seen == ["a", "d"]
    assert await waiting(database) == []
    assert await parked(database) == ["b"]
    assert bulkhead.failures == {"outbox": 1, "outbox-listener": 1}
    assert relay.published == 3
