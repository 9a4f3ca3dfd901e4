"""Publishers, consumers, followers and responders: answers, redelivery, logs while they wait."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from hamicommon import events
from hamicommon.bus import client, consumer, pull
from hamicommon.bus.client import Bus, Message, NobodyAnswers, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.pull import FETCH_WAIT_S, Settlement
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.events import readiness_subject
from hamicommon.process import outages
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server

from tests.integration.bus.conftest import INVENTORIES, Inbox, inventory, outgoing
from tests.processes import running
from tests.waiting import PATIENCE_S, eventually


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


async def test_an_unreadable_message_is_dead_lettered_and_the_next_one_arrives(bus: Bus) -> None:
    inbox = Inbox()

    async def refuse_first(message: Message) -> None:
        if b"broken" in message.data:
            raise InvalidRequest("node: broken is not a node")
        await inbox.take(message)

    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(bus.consume(INVENTORIES, refuse_first))
        await bus.publish(events.inventory_subject("a"), inventory("broken"), message_id="1")
        await bus.publish(events.inventory_subject("b"), inventory("whole"), message_id="2")

        assert b"whole" in (await inbox.next()).data
        consuming.cancel()

    assert bus.dead_letters == 1


async def test_a_handler_that_must_wait_gets_the_message_again(bus: Bus) -> None:
    inbox = Inbox()

    async def wait_once(message: Message) -> None:
        if message.deliveries == 1:
            raise Unavailable("the ledger is away")
        await inbox.take(message)

    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(bus.consume(INVENTORIES, wait_once))
        await bus.publish(events.inventory_subject("a"), inventory("a"), message_id="1")

        assert (await inbox.next()).deliveries == 2
        consuming.cancel()


class Logged(logging.Handler):
    """Collects log lines as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())


async def test_an_outage_of_the_backend_is_one_line_for_all_its_messages(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pull.ACKNOWLEDGEMENTS, Settlement.RETRY, b'-NAK {"delay": 10000000}')
    monkeypatch.setattr(consumer, "BACKEND_RECOVERY_S", 1e9)
    inbox, logged, logger = Inbox(), Logged(), logging.getLogger(consumer.__name__)
    logger.addHandler(logged)

    async def wait_twice(message: Message) -> None:
        if message.deliveries < 3:
            raise Unavailable("the ledger is away")
        await inbox.take(message)

    async with asyncio.TaskGroup() as tasks:
        consuming = tasks.create_task(bus.consume(INVENTORIES, wait_twice))
        for name in "abcde":
            await bus.publish(events.inventory_subject(name), inventory(name), message_id=name)
        for _ in "abcde":
            await inbox.next()
        consuming.cancel()
    logger.removeHandler(logged)

    assert logged.lines.qsize() == 1
    assert logged.lines.get_nowait() == "Failed to reach the backend, messages are redelivered"


async def test_a_consumer_logs_once_that_its_stream_is_missing_and_once_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(client, "RETRY_DELAY_S", 0.01)
    monkeypatch.setattr(outages, "STARTS_WITHIN_S", 0.0)
    tries, tried = 0, asyncio.Event()
    run = consumer.Consumer.run

    async def count_and_run(one: consumer.Consumer) -> None:
        nonlocal tries
        tries += 1
        if tries == 4:
            tried.set()
        await run(one)

    monkeypatch.setattr(consumer.Consumer, "run", count_and_run)
    inbox, logged, logger = Inbox(), Logged(), logging.getLogger(consumer.__name__)
    logger.addHandler(logged)
    monkeypatch.setattr(logger, "level", logging.INFO)
    plan = nats_server.prepare(tmp_path / "nats")
    with running(plan, die_with_parent=True):
        async with open_bus(NatsSettings(url=plan.url), "test") as bus, asyncio.timeout(PATIENCE_S):
            following = asyncio.create_task(bus.consume(INVENTORIES, inbox.take))
            await tried.wait()
            async with open_bus(NatsSettings(url=plan.url), "owner", owns_streams=True) as owner:
                await owner.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
                await inbox.next()
                lines = [await logged.lines.get() for _ in range(2)]
            following.cancel()
    logger.removeHandler(logged)

    assert lines == ["Failed to consume messages, retrying", "Consuming messages again"]


@pytest.mark.parametrize("cancelled", [False, True], ids=["left alone", "cancelled at once"])
async def test_a_consumer_ends_when_its_bus_is_closed(nats_url: str, cancelled: bool) -> None:
    inbox = Inbox()
    async with open_bus(NatsSettings(url=nats_url), "test", owns_streams=True) as bus:
        consuming = asyncio.create_task(bus.consume(INVENTORIES, inbox.take))
        await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="closed")
        await inbox.next()
        closing = asyncio.create_task(bus.close())
        if cancelled:
            consuming.cancel()
        await closing

        await asyncio.wait([consuming], timeout=PATIENCE_S)

        assert consuming.done()
        assert consuming.cancelled() or consuming.exception() is None


async def test_a_follower_without_echo_hears_others_and_not_its_own_bus(
    bus: Bus, nats_url: str
) -> None:
    inbox = Inbox()

    async def refuse_first(message: Message) -> None:
        if b"broken" in message.data:
            raise InvalidRequest("node: broken is not a node")
        await inbox.take(message)

    settings = NatsSettings(url=nats_url)
    async with open_bus(settings, "replica", echo=False) as replica:
        following = asyncio.create_task(replica.follow(["hami.inventory.v1.*"], refuse_first))
        reported_once, stored = False, Inbox()
        consuming = asyncio.create_task(replica.consume(INVENTORIES, stored.take))
        # Nothing shows when the subscription has reached the server, but the first message.
        while not reported_once:
            await bus.publish("hami.inventory.v1.a", inventory("hello"), message_id=uuid4().hex)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    assert b"hello" in (await inbox.next()).data
                    reported_once = True

        assert await replica.publish_all([outgoing("own")]) == [None]
        await bus.publish("hami.inventory.v1.b", inventory("broken"), message_id="broken")
        await bus.publish("hami.inventory.v1.b", inventory("other"), message_id="other")

        heard = [(await inbox.next()).data]
        while b"other" not in heard[-1]:
            heard.append((await inbox.next()).data)
        assert not any(b"nown" in data or b"broken" in data for data in heard)
        # JetStream delivers it nevertheless.
        while b"nown" not in (await stored.next()).data:
            pass
        for task in (following, consuming):
            task.cancel()


async def test_one_request_stands_for_messages_that_come_one_by_one(
    bus: Bus, nats_url: str
) -> None:
    inbox, requests = Inbox(), Inbox()
    settings = NatsSettings(url=nats_url)
    async with open_bus(settings, "watcher") as watcher, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watcher.follow(["$JS.API.CONSUMER.MSG.NEXT.>"], requests.take))
        consuming = tasks.create_task(bus.consume(INVENTORIES, inbox.take))
        async with asyncio.timeout(PATIENCE_S):
            await requests.next()
        began_s = time.monotonic()
        for number in range(20):
            subject = events.inventory_subject(f"node-{number}")
            await bus.publish(subject, inventory("a"), message_id=uuid4().hex)
            await inbox.next()
        spent_s = time.monotonic() - began_s
        consuming.cancel()
        watching.cancel()

    assert requests.messages.qsize() <= 1 + spent_s / FETCH_WAIT_S


async def test_a_batch_that_is_still_handled_holds_up_no_later_message(bus: Bus) -> None:
    began: asyncio.Queue[bytes] = asyncio.Queue()
    may_end = asyncio.Event()

    async def handle_all(messages: Sequence[Message]) -> list[Exception | None]:
        for message in messages:
            began.put_nowait(message.data)
        await may_end.wait()
        return [None for _ in messages]

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(PATIENCE_S):
        consuming = tasks.create_task(bus.consume_all(INVENTORIES, handle_all))
        for number in range(2):
            subject = events.inventory_subject(f"node-{number}")
            await bus.publish(subject, inventory("a"), message_id=uuid4().hex)
            await began.get()
        may_end.set()
        consuming.cancel()


async def test_a_dead_letter_has_its_reason_and_can_be_sent_again(bus: Bus) -> None:
    inbox, able = Inbox(), asyncio.Event()

    async def refuse(message: Message) -> None:
        if not able.is_set():
            raise InvalidRequest("inventory: version is 9,\nand this release reads 1")
        await inbox.take(message)

    what = Subscription(
        stream=events.INVENTORY_STREAM, subject="hami.inventory.v1.late", consumer="older"
    )
    consuming = asyncio.create_task(bus.consume(what, refuse))
    before = await bus.letters.count()
    await bus.publish("hami.inventory.v1.late", inventory("late"), message_id=uuid4().hex)
    async with asyncio.timeout(PATIENCE_S):
        while await bus.letters.count() == before:
            await asyncio.sleep(0.02)

    [letter] = await bus.letters.latest(1)
    assert (letter.stream, letter.subject, letter.consumer, letter.reason) == (
        events.INVENTORY_STREAM,
        "hami.inventory.v1.late",
        "older",
        "inventory: version is 9, and this release reads 1",
    )
    assert b'"late"' in letter.data

    able.set()
    await bus.letters.send_again(letter.sequence)

    assert (await inbox.next()).data == letter.data
    assert letter.sequence not in [one.sequence for one in await bus.letters.latest(10)]
    with pytest.raises(NotFound, match=f"no dead letter {letter.sequence}"):
        await bus.letters.send_again(letter.sequence)
    consuming.cancel()


SUBJECT = readiness_subject("a")


async def test_who_stops_serving_answers_what_is_under_way(bus: Bus) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def respond(_subject: str, body: bytes) -> bytes:
        if body == b"slow":
            came.set()
            await go_on.wait()
        return body

    async def is_served() -> bool:
        try:
            await bus.request(SUBJECT, b"ping")
        except NobodyAnswers:
            return False
        return True

    serving = asyncio.create_task(bus.serve(SUBJECT, "", respond))
    await eventually(is_served, "the responder")
    slow = asyncio.create_task(bus.request(SUBJECT, b"slow"))
    await came.wait()
    serving.cancel()
    go_on.set()

    assert await slow == b"slow"
    await asyncio.wait([serving])
