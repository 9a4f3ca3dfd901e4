"""Consumers that the scheduler makes and settles, read with the metrics service's own rights."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import nats
import nats.errors
import pytest
from hamicommon import events
from hamicommon.bus import deliveries
from hamicommon.bus.client import Bus, Handler, Message
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.deliveries import USAGE
from hamicommon.bus.permissions import METRICS_USER, SCHEDULER_USER
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.shutdown import end
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats import service_nats_users
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo
from nats.js.errors import NotFoundError

from tests.integration.bus.conftest import Inbox, inventory, settings_of
from tests.processes import running
from tests.waiting import PATIENCE_S, eventually

SUBJECT = events.usage_subject("a")


def scheduler_of(url: str) -> AbstractAsyncContextManager[Bus]:
    return open_bus(settings_of(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True)


def metrics_of(url: str) -> AbstractAsyncContextManager[Bus]:
    return open_bus(settings_of(url, METRICS_USER), METRICS_USER)


@asynccontextmanager
async def under_way(*loops: Coroutine[object, object, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        await end(tasks)


async def publish(bus: Bus, *numbers: int) -> None:
    for number in numbers:
        await bus.publish(SUBJECT, inventory("a", number), message_id=f"u{number}")


def number_of(message: Message) -> int:
    return events.Inventory.model_validate_json(message.data).sequence


async def info(js: JetStreamContext, consumer: str = USAGE.consumer) -> ConsumerInfo:
    found: ConsumerInfo = await js.consumer_info(USAGE.stream, consumer)
    return found


async def test_what_the_reader_settles_is_acknowledged_repeated_or_buried(
    url: str, js: JetStreamContext
) -> None:
    came: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        number = number_of(message)
        came.append((number, message.deliveries))
        if number == 2 and message.deliveries == 1:
            raise Unavailable("not now")
        if number == 3:
            raise InvalidRequest("not this one")

    async with scheduler_of(url) as scheduler, metrics_of(url) as metrics:
        async with under_way(scheduler.settle_deliveries("s"), metrics.consume(USAGE, handle)):
            await publish(scheduler, 1, 2, 3, 4)

            async def has_four_acknowledged() -> bool:
                found = await info(js)
                floor = found.ack_floor
                return floor is not None and floor.stream_seq == 4 and not found.num_ack_pending

            await eventually(has_four_acknowledged, "four messages settled")
        [letter] = await scheduler.letters.latest(5)
    assert sorted(came) == [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
    assert (letter.user, letter.consumer, letter.reason) == (
        METRICS_USER,
        USAGE.consumer,
        "not this one",
    )


async def test_two_readers_share_the_messages_and_one_that_ends_leaves_its_own(
    url: str, js: JetStreamContext
) -> None:
    shares: dict[str, list[int]] = {"first": [], "second": []}
    held = asyncio.Event()

    def reader(name: str) -> Handler:
        async def handle(message: Message) -> None:
            shares[name].append(number_of(message))
            if name == "first" and not held.is_set():
                held.set()
                await asyncio.Event().wait()

        return handle

    async with (
        scheduler_of(url) as scheduler,
        metrics_of(url) as one,
        metrics_of(url) as other,
        under_way(scheduler.settle_deliveries("s"), other.consume(USAGE, reader("second"))),
    ):
        async with under_way(one.consume(USAGE, reader("first"))):
            for number in range(1, 41):
                await publish(scheduler, number)
            async with asyncio.timeout(PATIENCE_S):
                await held.wait()

        # The held one is not settled; the server delivers it again after `ACK_WAIT_S`.
        await eventually(lambda: len(set(shares["second"])) == 39, "what the first reader left")
    assert (await info(js)).num_ack_pending == 1


async def test_a_reader_that_is_there_before_the_scheduler_waits_for_it(url: str) -> None:
    inbox = Inbox()
    async with (
        metrics_of(url) as metrics,
        under_way(metrics.consume(USAGE, inbox.take)),
        scheduler_of(url) as scheduler,
    ):
        await publish(scheduler, 7)
        assert number_of(await inbox.next()) == 7


async def test_a_reader_that_was_refused_reads_once_the_server_has_its_new_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that only reads its configuration again closes no connection."""
    monkeypatch.setattr(deliveries, "MAX_IDLE_S", 0.0)
    monkeypatch.setattr(deliveries, "FETCH_WAIT_S", 0.1)
    tmp_path.chmod(0o755)
    users = [
        replace(each, subscribe=("_INBOX_hami-metrics.>",)) if each.name == METRICS_USER else each
        for each in service_nats_users(lambda _user: "x")
    ]
    plan = nats_server.prepare(tmp_path / "nats", users=users)
    inbox = Inbox()
    with running(plan, die_with_parent=True) as server:
        async with (
            scheduler_of(plan.url) as scheduler,
            metrics_of(plan.url) as metrics,
            under_way(metrics.consume(USAGE, inbox.take)),
        ):
            await publish(scheduler, 7)
            [file] = [Path(each) for each in plan.argv if each.endswith(".conf")]
            config = json.loads(file.read_text())
            for user in config["authorization"]["users"]:
                if user["user"] == METRICS_USER:
                    user["permissions"]["subscribe"]["allow"].append(USAGE.deliver_subject)
            file.write_text(json.dumps(config))
            os.kill(server.value.pid, signal.SIGHUP)
            assert number_of(await inbox.next()) == 7


async def test_an_upgrade_reads_on_where_the_replaced_consumer_was(
    url: str, js: JetStreamContext
) -> None:
    inbox = Inbox()
    async with scheduler_of(url) as scheduler:
        await js.delete_consumer(USAGE.stream, USAGE.consumer)
        config = ConsumerConfig(durable_name=USAGE.replaces, ack_policy=AckPolicy.EXPLICIT)
        await js.add_consumer(USAGE.stream, config)
        await publish(scheduler, 1, 2, 3, 4)
        older = await nats.connect(url, user="admin", password="x")
        pulling = await older.subscribe("_INBOX.older")
        await older.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{USAGE.stream}.{USAGE.replaces}",
            b'{"batch": 9, "expires": %d}' % (PATIENCE_S * 1_000_000_000),
            reply=pulling.subject,
        )
        first, _unsettled, third = [await pulling.next_msg(timeout=PATIENCE_S) for _ in range(3)]
        for message in (first, third):
            await message.ack_sync()

        async def pulls() -> bool:
            return bool((await info(js, USAGE.replaces)).num_waiting)

        await eventually(pulls, "a reader of the previous release")
        await scheduler.streams.check()
        # It would make it again, from the beginning of the stream.
        assert (await info(js, USAGE.replaces)).num_waiting
        await older.close()

        async def is_replaced() -> bool:
            await scheduler.streams.check()
            try:
                await info(js, USAGE.replaces)
            except NotFoundError:
                return True
            return False

        await eventually(is_replaced, "the replaced consumer gone")
        async with metrics_of(url) as metrics, under_way(metrics.consume(USAGE, inbox.take)):
            got = [number_of(await inbox.next()) for _ in range(3)]
    assert got == [2, 3, 4]
    assert scheduler.streams.problems == {}


async def test_a_deleted_consumer_is_made_again(url: str, js: JetStreamContext) -> None:
    async with scheduler_of(url) as scheduler:
        await js.delete_consumer(USAGE.stream, USAGE.consumer)
        await scheduler.streams.check()
        assert (await info(js)).push_bound is not True
        assert scheduler.streams.problems == {}


@pytest.mark.parametrize("user", [METRICS_USER, "agent-a"])
async def test_no_login_makes_the_server_publish_or_delete_for_it(
    url: str, js: JetStreamContext, user: str
) -> None:
    """With a reply subject of its choice on all that a login could have tried."""
    async with scheduler_of(url) as scheduler:
        heard = Inbox()
        async with under_way(scheduler.follow(["hami.reports.v1.b"], heard.take)):
            await publish(scheduler, 1)
            client = await nats.connect(
                url, user=user, password="x", inbox_prefix=f"_INBOX_{user}".encode(), error_cb=_skip
            )
            taken = f"{USAGE.stream}.{USAGE.consumer}"
            for reply in ("hami.reports.v1.b", f"$JS.API.STREAM.DELETE.{USAGE.stream}"):
                for subject, body in (
                    (f"$JS.ACK.{taken}.1.1.1.1.0", b"+WPI"),
                    (f"$JS.ACK.{taken}.1.1.1.1.0", b"+NXT"),
                    (f"$JS.API.CONSUMER.MSG.NEXT.{taken}", b""),
                    (f"$JS.API.DIRECT.GET.{USAGE.stream}.{SUBJECT}", b""),
                    (f"$JS.API.CONSUMER.CREATE.{USAGE.stream}", b"{}"),
                ):
                    await client.publish(subject, body, reply=reply)
                    await client.flush()
            await client.close()
            await scheduler.publish("hami.reports.v1.b", inventory("b"), message_id="end")
            assert b'"agent_id"' in (await heard.next()).data
    assert (await js.stream_info(USAGE.stream)).state.messages == 1
    assert [each.name for each in await js.consumers_info(USAGE.stream)] == [USAGE.consumer]


async def test_a_receipt_that_a_node_has_sent_to_the_servers_api_is_no_request(
    url: str, js: JetStreamContext
) -> None:
    """The server sends it wherever the node names, as `{"stream": ..., "seq": ...}`."""
    async with scheduler_of(url) as scheduler:
        for number in range(3):
            await scheduler.publish(
                events.reports_subject("b"), inventory("b", number), message_id=f"r{number}"
            )
        client = await nats.connect(
            url, user="agent-a", password="x", inbox_prefix=b"_INBOX_agent-a"
        )
        for request in ("STREAM.PURGE", "STREAM.MSG.DELETE", "STREAM.DELETE", "STREAM.UPDATE"):
            reply = f"$JS.API.{request}.{events.REPORTS_STREAM}"
            await client.publish(SUBJECT, b"{}", reply=reply)
            await client.flush()
        await client.close()
        # Stored after those, in order.
        await scheduler.publish(SUBJECT, inventory("a"), message_id="end")
        assert (await js.stream_info(USAGE.stream)).state.messages == 5
    assert (await js.stream_info(events.REPORTS_STREAM)).state.messages == 3


async def _skip(_exc: Exception) -> None:
    """Refusals are seen by what did not happen."""
