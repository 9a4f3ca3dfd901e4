"""The relay between the outbox and the bus, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from hamicommon.bus.client import Outgoing
from hamicommon.errors import Unavailable
from hamicommon.ledger import outbox
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.outbox import BATCH, OutboxRelay
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import PostgresSettings

SUBJECT = "hami.events.v1.allocation.reserved"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Stream:
    """Keeps what was published; refuses what `refuses` names."""

    connected = True

    def __init__(self, refuses: bytes = b"nothing") -> None:
        self.refuses = refuses
        self.messages: list[Outgoing] = []

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        answers: list[Unavailable | None] = []
        # Others get a chance to take the same rows.
        await asyncio.sleep(0)
        for message in messages:
            if self.refuses in message.data:
                answers.append(Unavailable("refused"))
            else:
                self.messages.append(message)
                answers.append(None)
        return answers


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings = PostgresSettings(dsn=postgres_dsn)  # type: ignore[arg-type]
    async with open_database(settings, application="test") as opened:
        yield opened


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
    relay = OutboxRelay(database, stream)
    await write(database, "a", "b")

    assert (await relay.relay_once(), await relay.relay_once()) == (2, 0)

    assert [message.data for message in stream.messages] == [b'{"name":"a"}', b'{"name":"b"}']
    assert {message.subject for message in stream.messages} == {SUBJECT}
    assert stream.messages[0].headers == {"traceparent": TRACE}
    assert await waiting(database) == []


async def test_a_row_that_was_not_stored_waits_under_the_same_id(database: Database) -> None:
    stream = Stream(refuses=b"b")
    relay = OutboxRelay(database, stream)
    await write(database, "a", "b", "c")
    seen: list[str] = []

    async def listen(subject: str, payload: Mapping[str, Any]) -> None:
        assert subject == SUBJECT
        seen.append(payload["name"])

    relay.listener = listen
    with pytest.raises(Unavailable, match="refused"):
        await relay.relay_once()
    assert await waiting(database) == ["b"]
    assert seen == ["a", "c"]

    stream.refuses = b"nothing"
    assert await relay.relay_once() == 1
    assert seen == ["a", "c", "b"]
    assert len({message.message_id for message in stream.messages}) == 3


async def test_two_relays_share_the_rows_without_announcing_one_twice(database: Database) -> None:
    stream = Stream()
    relays = [OutboxRelay(database, stream) for _ in range(2)]
    names = [f"n{number}" for number in range(2 * BATCH)]
    await write(database, *names)

    counts = await asyncio.gather(*(relay.relay_once() for relay in relays))

    assert sum(counts) == len({message.data for message in stream.messages}) == 2 * BATCH
    assert len(stream.messages) == 2 * BATCH


async def test_without_a_bus_nothing_is_taken(database: Database) -> None:
    stream = Stream()
    stream.connected = False
    await write(database, "a")

    assert await OutboxRelay(database, stream).relay_once() == 0
    assert await waiting(database) == ["a"]


async def test_rows_around_a_poisonous_one_are_announced_and_it_leaves(database: Database) -> None:
    stream, bulkhead = Stream(), Bulkhead()
    relay = OutboxRelay(database, stream, bulkhead=bulkhead)
    await write(database, "a", "b", "c", "d")
    seen: list[str] = []

    async def listen(subject: str, payload: Mapping[str, Any]) -> None:
        del subject
        if payload["name"] == "c":
            raise ValueError("odd")
        seen.append(payload["name"])

    relay.listener = listen
    poison = outbox._message

    def message(row: Any) -> Outgoing:
        if row["payload"]["name"] == "b":
            raise TypeError("Integer exceeds 64-bit range")
        return poison(row)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outbox, "_message", message)
        await relay.relay_once()

    assert [sent.data for sent in stream.messages] == [
        b'{"name":"a"}',
        b'{"name":"c"}',
        b'{"name":"d"}',
    ]
    assert seen == ["a", "d"]
    assert await waiting(database) == []
    assert bulkhead.failures == {"outbox": 1, "outbox-listener": 1}
    assert relay.published == 3
