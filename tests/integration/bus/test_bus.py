"""The bus over a real NATS: delivery, dead letters, reconnects, and who may read what."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from hamicommon import events
from hamicommon.bus import client, consuming
from hamicommon.bus.client import (
    Bus,
    Deliver,
    Message,
    NobodyAnswers,
    Outgoing,
    Subscription,
    open_bus,
)
from hamicommon.bus.permissions import agent_user
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.settings import NatsSettings
from hamictl.servers import nats as nats_server
from hamictl.servers.nats_config import NatsUser, agent_nats_user
from hamictl.servers.processes import running, start
from nats.js.api import StorageType
from pydantic import SecretStr

DEADLINE_S = 60.0


def inventory(node: str, sequence: int = 1) -> events.Inventory:
    return events.Inventory(
        node=node,
        agent_id="agent",
        sequence=sequence,
        observed_at=datetime.now(UTC),
        devices=(),
    )


INVENTORIES = Subscription(
    stream=events.INVENTORY_STREAM,
    subject="hami.inventory.v1.*",
    consumer="test",
    deliver=Deliver.LAST_PER_SUBJECT,
)


class Inbox:
    """Collects what a consumer hands over."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def take(self, message: Message) -> None:
        self.messages.put_nowait(message)

    async def next(self) -> Message:
        async with asyncio.timeout(DEADLINE_S):
            return await self.messages.get()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with open_bus(NatsSettings(url=nats_url), "test", owns_streams=True) as opened:
        yield opened


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


async def test_a_bus_opened_before_the_server_connects_when_it_comes(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
        assert not bus.connected
        with pytest.raises(Unavailable, match="not connected"):
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")

        with running(plan, die_with_parent=True):
            await _connected(bus)
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")


class Said(logging.Handler):
    """Collects log lines as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())


async def test_a_consumer_says_once_that_it_waits_for_its_stream_and_once_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(client, "RETRY_DELAY_S", 0.01)
    tries, tried = 0, asyncio.Event()
    run = consuming.Consumer.run

    async def counted(consumer: consuming.Consumer) -> None:
        nonlocal tries
        tries += 1
        if tries == 4:
            tried.set()
        await run(consumer)

    monkeypatch.setattr(consuming.Consumer, "run", counted)
    inbox, said, logger = Inbox(), Said(), logging.getLogger(consuming.__name__)
    logger.addHandler(said)
    monkeypatch.setattr(logger, "level", logging.INFO)
    plan = nats_server.prepare(tmp_path / "nats")
    with running(plan, die_with_parent=True):
        async with open_bus(NatsSettings(url=plan.url), "test") as bus, asyncio.timeout(DEADLINE_S):
            following = asyncio.create_task(bus.consume(INVENTORIES, inbox.take))
            await tried.wait()
            async with open_bus(NatsSettings(url=plan.url), "owner", owns_streams=True) as owner:
                await owner.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
                await inbox.next()
                lines = [await said.lines.get() for _ in range(2)]
            following.cancel()
    logger.removeHandler(said)

    assert lines == ["consumer waits", "consumer goes on"]


async def test_consumers_go_on_after_the_server_was_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    inbox = Inbox()
    first = start(plan, die_with_parent=True)
    async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
        consuming = asyncio.create_task(bus.consume(INVENTORIES, inbox.take))
        await bus.publish("hami.inventory.v1.a", inventory("a", 1), message_id="1")
        await inbox.next()

        first.kill()
        with running(plan, die_with_parent=True):
            await _publish_once_back(bus, inventory("a", 2))

            # The first may come again: its acknowledgement died with the server.
            while b'"sequence":2' not in (await inbox.next()).data:
                pass
        consuming.cancel()


async def test_a_server_that_falls_silent_counts_as_away_within_seconds(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    with running(plan, die_with_parent=True) as server:
        async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
            await _connected(bus)
            os.kill(server.value.process.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    while bus.connected:
                        await asyncio.sleep(0.1)
                with pytest.raises(Unavailable, match="not connected"):
                    await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
            finally:
                os.kill(server.value.process.pid, signal.SIGCONT)
            await _connected(bus)


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

        await asyncio.wait([consuming], timeout=DEADLINE_S)

        assert consuming.done()
        assert consuming.cancelled() or consuming.exception() is None


async def _publish_once_back(bus: Bus, payload: events.Inventory) -> None:
    """The client needs a moment to notice that its server was killed."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await bus.publish("hami.inventory.v1.a", payload, message_id="back")
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def _connected(bus: Bus) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not bus.connected_for_s:
            await asyncio.sleep(0.02)


async def test_an_agent_reads_neither_the_grants_nor_the_replies_of_another_node(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    users = [NatsUser(name="admin", password="x")]
    users += [agent_nats_user(node, "x") for node in ("a", "b.example")]
    plan = nats_server.prepare(tmp_path / "nats", users=users)
    with running(plan, die_with_parent=True):
        async with (
            open_bus(_as(plan.url, "admin"), "admin", owns_streams=True) as admin,
            open_bus(_as(plan.url, agent_user("a")), "a") as agent,
        ):
            await _own_subjects_work(admin, agent)
        await _foreign_subjects_are_refused(plan.url)


def _as(url: str, user: str) -> NatsSettings:
    return NatsSettings(url=url, user=user, password=SecretStr("x"))


async def _own_subjects_work(admin: Bus, agent: Bus) -> None:
    inbox = Inbox()
    grants = Subscription(
        stream=events.GRANTS_STREAM,
        subject=events.grants_subject("a"),
        consumer=agent_user("a"),
        ephemeral=True,
    )

    async def answer(subject: str, _data: bytes) -> events.GrantSnapshot:
        return events.GrantSnapshot(
            node=subject.rpartition(".")[2], complete=True, taken_at=datetime.now(UTC)
        )

    serving = asyncio.create_task(admin.serve("hami.grants.snapshot.*", "q", answer))
    consuming = asyncio.create_task(agent.consume(grants, inbox.take))
    withdrawn = events.GrantWithdrawn(
        allocation_id="1", pod_uid="1", node="a", token=1, reason="test"
    )
    await admin.publish(events.grants_subject("a"), withdrawn, message_id="1")
    assert b'"test"' in (await inbox.next()).data
    await agent.publish(events.inventory_subject("a"), inventory("a"), message_id="2")
    reply = await agent.request(events.snapshot_subject("a"), events.GrantSnapshotRequest(node="a"))
    assert events.GrantSnapshot.model_validate_json(reply).node == "a"
    for task in (serving, consuming):
        task.cancel()


async def _foreign_subjects_are_refused(url: str) -> None:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(exc: Exception) -> None:
        refused.put_nowait(str(exc).lower())

    client = await nats.connect(
        url, user=agent_user("a"), password="x", error_cb=on_error, inbox_prefix=b"_INBOX_agent-a"
    )
    other = "b.example"
    try:
        for subject in ("_INBOX_agent-b_example.>", "_INBOX.>", events.grants_subject(other), ">"):
            await client.subscribe(subject)
            await _permission_error(refused, subject)
        create = f"$JS.API.CONSUMER.CREATE.HAMI_GRANTS.x.{events.grants_subject(other)}"
        for subject in (
            create,
            "$JS.API.STREAM.MSG.GET.HAMI_GRANTS",
            "$JS.API.DIRECT.GET.HAMI_GRANTS",
            events.snapshot_subject(other),
            events.inventory_subject(other),
            events.reports_subject(other),
        ):
            await client.publish(subject, b"{}")
            await _permission_error(refused, subject)
    finally:
        await client.close()


async def _permission_error(refused: asyncio.Queue[str], subject: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        message = await refused.get()
    assert "permissions violation" in message, message
    assert subject.lower() in message, (subject, message)


def outgoing(message_id: str, subject: str = "hami.inventory.v1.a") -> Outgoing:
    body = inventory(f"n{message_id}").model_dump_json().encode()
    return Outgoing(subject=subject, data=body, message_id=message_id)


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


async def test_of_many_messages_each_says_whether_it_was_stored(bus: Bus) -> None:
    stored, lost = await bus.publish_all([outgoing("1"), outgoing("2", "no.stream.takes.this")])

    assert stored is None
    assert isinstance(lost, Unavailable)
    assert "no.stream.takes.this" in str(lost)


async def test_many_messages_without_a_server_are_all_refused() -> None:
    settings = NatsSettings(url="nats://127.0.0.1:1", connect_timeout_s=0.05)
    async with open_bus(settings, "test") as away:
        errors = await away.publish_all([outgoing("1"), outgoing("2")])

    assert [type(error) for error in errors] == [Unavailable, Unavailable]


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
        following = asyncio.create_task(replica.follow("hami.inventory.v1.*", refuse_first))
        heard_once, stored = False, Inbox()
        consuming = asyncio.create_task(replica.consume(INVENTORIES, stored.take))
        # Nothing tells when the subscription has reached the server, but the first message.
        while not heard_once:
            await bus.publish("hami.inventory.v1.a", inventory("hello"), message_id=uuid4().hex)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    assert b"hello" in (await inbox.next()).data
                    heard_once = True

        assert await replica.publish_all([outgoing("own")]) == [None]
        await bus.publish("hami.inventory.v1.b", inventory("broken"), message_id="broken")
        await bus.publish("hami.inventory.v1.b", inventory("other"), message_id="other")

        heard = [(await inbox.next()).data]
        while b"other" not in heard[-1]:
            heard.append((await inbox.next()).data)
        assert not any(b"nown" in data or b"broken" in data for data in heard)
        # JetStream delivers it all the same.
        while b"nown" not in (await stored.next()).data:
            pass
        for task in (following, consuming):
            task.cancel()


async def test_a_stream_with_other_limits_gets_those_that_are_stated(
    bus: Bus, nats_url: str
) -> None:
    client = await nats.connect(nats_url)
    try:
        js = client.jetstream()
        found = (await js.stream_info(events.USAGE_STREAM)).config
        await js.update_stream(config=found, max_age=7200.0, max_msgs=7)

        await bus.streams.check()

        assert bus.streams.problems == {}
        after = (await js.stream_info(events.USAGE_STREAM)).config
        assert (after.max_age, after.max_msgs) == (3600.0, -1)
    finally:
        await client.close()


async def test_a_stream_that_cannot_be_as_it_should_is_named_and_hinders_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    with running(plan, die_with_parent=True):
        client = await nats.connect(plan.url)
        js = client.jetstream()
        await js.add_stream(
            name=events.INVENTORY_STREAM,
            subjects=["hami.inventory.v1.*"],
            storage=StorageType.MEMORY,
        )
        await js.add_stream(name="SOMEBODY_ELSES", subjects=["hami.usage.>"])
        async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
            assert set(bus.streams.problems) == {events.INVENTORY_STREAM, events.USAGE_STREAM}
            assert "storage" in bus.streams.problems[events.INVENTORY_STREAM]
            assert "subjects overlap" in bus.streams.problems[events.USAGE_STREAM]
            assert "stream not as it should be" in caplog.text
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
            withdrawn = events.GrantWithdrawn(
                allocation_id="1", pod_uid="1", node="a", token=1, reason="test"
            )
            await bus.publish(events.grants_subject("a"), withdrawn, message_id="2")

            for name in (events.INVENTORY_STREAM, "SOMEBODY_ELSES"):
                await js.delete_stream(name)
            async with asyncio.timeout(DEADLINE_S):
                while bus.streams.problems:
                    await asyncio.sleep(0.05)
            info = await js.stream_info(events.INVENTORY_STREAM)
            assert info.config.storage == StorageType.FILE
        await client.close()


async def test_a_dead_letter_tells_why_and_can_be_sent_again(bus: Bus) -> None:
    inbox, able = Inbox(), asyncio.Event()

    async def refuse(message: Message) -> None:
        if not able.is_set():
            raise InvalidRequest("inventory: version is 9,\nand this release reads 1")
        await inbox.take(message)

    what = Subscription(
        stream=events.INVENTORY_STREAM, subject="hami.inventory.v1.late", consumer="older"
    )
    consuming = asyncio.create_task(bus.consume(what, refuse))
    before = await bus.letters.kept()
    await bus.publish("hami.inventory.v1.late", inventory("late"), message_id=uuid4().hex)
    async with asyncio.timeout(DEADLINE_S):
        while await bus.letters.kept() == before:
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


async def test_who_asked_before_the_end_is_answered_and_who_asks_later_learns_that_nobody_is_there(
    bus: Bus, nats_url: str
) -> None:
    """An agent that ends keeps no question to itself: silence would mean that nothing is known."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(_subject: str, _data: bytes) -> events.Readiness:
        asked.set()
        await may_answer.wait()
        return events.Readiness(node="a", ready=False, reason="stopping")

    async def ask(of: Bus) -> bytes:
        question = events.ReadinessRequest(node="a")
        return await of.request(events.readiness_subject("a"), question)

    async with open_bus(NatsSettings(url=nats_url), "asks") as other:
        serving = asyncio.create_task(bus.serve(events.readiness_subject("a"), "", answer))
        first, second = (asyncio.ensure_future(_until_served(partial(ask, other))) for _ in "12")
        async with asyncio.timeout(DEADLINE_S):
            await asked.wait()
        serving.cancel()
        may_answer.set()

        assert {b"stopping" in reply for reply in await asyncio.gather(first, second)} == {True}
        await asyncio.wait([serving])
        with pytest.raises(NobodyAnswers):
            await ask(other)


async def _until_served(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    """Asks until somebody serves the subject; whoever was reached must answer."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await ask()
            except NobodyAnswers:
                await asyncio.sleep(0)
