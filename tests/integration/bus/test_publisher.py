"""Publishing: once per id, many together, each message with its own answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import nats
from hamicommon import events
from hamicommon.bus.client import Bus, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.errors import Unavailable
from hamicommon.settings import NatsSettings

from tests.integration.bus.conftest import INVENTORIES, Inbox, inventory, outgoing
from tests.waiting import PATIENCE_S


async def test_a_message_published_twice_under_one_id_arrives_once(bus: Bus) -> None:
    inbox = Inbox()
    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(bus.consume(INVENTORIES, inbox.take))
        for message_id in ("1", "1", "2"):
            await bus.publish(
                events.inventory_subject("a"), inventory(f"n{message_id}"), message_id=message_id
            )

        received = [await inbox.next()]
        while b"n2" not in received[-1].data:
            received.append(await inbox.next())
        consuming.cancel()

    assert sum(b"n1" in message.data for message in received) <= 1


async def test_many_messages_are_stored_at_once_and_a_repeated_one_only_once(
    bus: Bus, nats_url: str
) -> None:
    errors = await bus.publish_all([outgoing("1"), outgoing("2"), outgoing("1"), outgoing("3")])

    assert errors == [None] * 4
    client = await nats.connect(nats_url)
    try:
        info = await client.jetstream().stream_info(events.INVENTORY_STREAM)
        assert info.state.last_seq == 3
    finally:
        await client.close()


async def test_of_many_messages_each_has_its_own_outcome(bus: Bus) -> None:
    stored, lost = await bus.publish_all([outgoing("1"), outgoing("2", "no.stream.takes.this")])

    assert stored is None
    assert isinstance(lost, Unavailable)
    assert "no.stream.takes.this" in str(lost)


async def test_messages_that_the_client_refuses_take_no_room_from_later_ones(bus: Bus) -> None:
    """nats-py's `publish_async` has room for 4000, and keeps that of each message it refuses."""
    too_large = replace(outgoing("1"), data=b" " * (2 * 1024 * 1024))
    async with asyncio.timeout(PATIENCE_S):
        refused = await bus.publish_all([too_large] * 4001)
        [stored] = await bus.publish_all([outgoing("2")])

    assert {type(error) for error in refused} == {Unavailable}
    assert stored is None


async def test_messages_are_stored_in_their_order(bus: Bus) -> None:
    subjects = [f"hami.grants.v1.node-{number}" for number in range(200)]
    assert not any(await bus.publish_all([outgoing(subject, subject) for subject in subjects]))

    inbox = Inbox()
    grants = Subscription(stream=events.GRANTS_STREAM, subject="hami.grants.v1.*", consumer="test")
    consuming = asyncio.create_task(bus.consume(grants, inbox.take))
    arrived = [(await inbox.next()).subject for _ in subjects]
    consuming.cancel()

    assert arrived == subjects


async def test_many_messages_without_a_server_are_all_refused() -> None:
    settings = NatsSettings(url="nats://127.0.0.1:1", connect_timeout_s=0.05)
    async with open_bus(settings, "test") as away:
        errors = await away.publish_all([outgoing("1"), outgoing("2")])

    assert [type(error) for error in errors] == [Unavailable, Unavailable]
