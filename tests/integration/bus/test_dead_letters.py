"""A hostile sender of dead letters can't make the scheduler do more than it should (audit H8)."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, Outgoing, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.consumer import Message
from hamicommon.bus.dead_letters import CONSUMER_HEADER, REASON_HEADER, SUBJECT_HEADER
from hamicommon.bus.deliveries import USAGE
from hamicommon.bus.permissions import METRICS_USER, WEBHOOK_USER, agent_user
from hamicommon.bus.streams import LETTERS_OF_A_SENDER, MAX_LETTER_BYTES
from hamicommon.errors import InvalidRequest
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats import agent_nats_user, service_nats_users

from tests.integration.bus.conftest import Inbox, inventory, settings_of
from tests.processes import running
from tests.waiting import PATIENCE_S

SCHEDULER = "hami-scheduler"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the scheduler, the webhook and the agents of two nodes as users."""
    folder: Path = tmp_path_factory.mktemp("nats")
    users = service_nats_users(lambda _name: "x")
    users += [agent_nats_user(node, "x") for node in ("node-0", "node-1")]
    plan = nats_server.prepare(folder / "nats", users=users)
    with running(plan, die_with_parent=True):
        yield plan.url


@pytest.fixture
async def scheduler(url: str) -> AsyncIterator[Bus]:
    async with open_bus(settings_of(url, SCHEDULER), SCHEDULER, owns_streams=True) as opened:
        yield opened


async def _bury(url: str, user: str, letter_subject: str, headers: dict[str, str]) -> int:
    """Publish a letter as that user; return its sequence. Raises: TimeoutError if refused."""
    client = await nats.connect(
        url, user=user, password="x", inbox_prefix=f"_INBOX_{user}".encode(), error_cb=_nothing
    )
    try:
        ack = await client.jetstream().publish(
            letter_subject, b"forged", timeout=1.0, headers=headers
        )
        return ack.seq
    finally:
        await client.close()


async def _nothing(_exc: Exception) -> None:
    """Ignore the refusal: the missing acknowledgement shows it."""


@pytest.mark.parametrize(
    "claimed",
    [
        "$JS.API.STREAM.PURGE.HAMI_USAGE",
        "$SYS.REQ.SERVER.PING",
        "hami.grants.v1.node-1",
        "hami.grants.snapshot.node-0",
        "hami.inventory.v1.node-0",
        "hami.dead.v1.HAMI_USAGE.hami-metrics.node-0",
        "hami.usage.v1.>",
        "hami.usage.v1.node-0 node-1",
        "",
    ],
)
async def test_a_letter_of_metrics_goes_nowhere_but_to_usage(
    url: str, scheduler: Bus, claimed: str
) -> None:
    user = METRICS_USER
    heard = Inbox()
    client = await nats.connect(url, user=SCHEDULER, password="x")

    async def hear(message: object) -> None:
        heard.messages.put_nowait(message)

    for subject in ("hami.>", "$JS.API.STREAM.PURGE.>", "$SYS.>"):
        await client.subscribe(subject, cb=hear)
    await client.flush()
    sequence = await _bury(
        url,
        user,
        f"hami.dead.v1.HAMI_USAGE.{user}.node-0",
        {SUBJECT_HEADER: claimed, REASON_HEADER: "update, then send again", CONSUMER_HEADER: "x"},
    )
    await heard.next()  # the letter itself

    with pytest.raises(InvalidRequest, match=f"letter {sequence}: .*{user} may not"):
        await scheduler.letters.send_again(sequence)

    await client.publish("hami.test.end", b"")
    assert (await heard.next()).subject == "hami.test.end"
    assert sequence in [one.sequence for one in await scheduler.letters.latest(5)]
    await client.close()


async def test_agents_and_the_webhook_bury_nothing(url: str, scheduler: Bus) -> None:
    before = await scheduler.letters.count()
    for user, subject in (
        (agent_user("node-0"), "hami.dead.v1.HAMI_GRANTS.agent-node-0"),
        (agent_user("node-0"), "hami.dead.v1.HAMI_GRANTS.agent-node-1.x"),
        (agent_user("node-0"), "hami.dead.v1.HAMI_INVENTORY.hami-scheduler"),
        (agent_user("node-0"), "hami.dead.v1.HAMI_GRANTS"),
        (WEBHOOK_USER, "hami.dead.v1.HAMI_INVENTORY.hami-webhook.node-0"),
        (WEBHOOK_USER, "hami.dead.v1.HAMI_LEDGER.hami-webhook.cluster"),
    ):
        client = await nats.connect(url, user=user, password="x", error_cb=_nothing)
        await client.publish(subject, b"forged")
        await client.flush()
        await client.close()
    assert await scheduler.letters.count() == before


async def test_letters_that_the_webhook_of_an_older_release_buried_are_not_sent(
    url: str, scheduler: Bus
) -> None:
    letter = "hami.dead.v1.HAMI_INVENTORY.hami-webhook.node-0"
    headers = {SUBJECT_HEADER: "hami.inventory.v1.node-0"}
    sequence = await _bury(url, SCHEDULER, letter, headers)

    with pytest.raises(InvalidRequest, match="hami-webhook may not"):
        await scheduler.letters.send_again(sequence)


async def test_a_letter_of_an_older_release_is_shown_and_not_sent(url: str, scheduler: Bus) -> None:
    headers = {SUBJECT_HEADER: "hami.grants.v1.node-0"}
    sequence = await _bury(url, SCHEDULER, "hami.dead.v1.HAMI_GRANTS", headers)

    [letter] = await scheduler.letters.latest(1)
    assert (letter.sequence, letter.stream, letter.user) == (sequence, "HAMI_GRANTS", "")
    with pytest.raises(InvalidRequest, match="an older release"):
        await scheduler.letters.send_again(sequence)


async def test_a_letter_of_metrics_comes_back_to_it(url: str, scheduler: Bus) -> None:
    inbox, able = Inbox(), asyncio.Event()

    async def refuse(message: Message) -> None:
        if not able.is_set():
            raise InvalidRequest("version is 9")
        await inbox.take(message)

    subject = events.usage_subject("node-0")
    async with open_bus(settings_of(url, METRICS_USER), METRICS_USER) as metrics:
        consuming = asyncio.create_task(metrics.consume(USAGE, refuse))
        before = await scheduler.letters.count()
        await scheduler.publish(subject, inventory("node-0"), message_id="usage")
        await _until_kept(scheduler, before + 1)
        [letter] = await scheduler.letters.latest(1)
        assert (letter.user, letter.subject) == (METRICS_USER, subject)
        able.set()

        await scheduler.letters.send_again(letter.sequence)

        assert (await inbox.next()).subject == subject
        consuming.cancel()


async def test_a_flood_of_bad_messages_leaves_the_letters_of_other_nodes_and_the_log_alone(
    scheduler: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    flood, handled = 4 * LETTERS_OF_A_SENDER, asyncio.Event()

    async def refuse(message: Message) -> None:
        if message.data == b"end":
            handled.set()
            return
        raise InvalidRequest("report is malformed")

    what = Subscription(
        stream=events.REPORTS_STREAM, subject="hami.reports.v1.*", consumer="flooded"
    )
    honest, hostile = events.reports_subject("node-0"), events.reports_subject("node-1")
    messages = [Outgoing(subject=honest, data=b"honest", message_id="honest")]
    # As large as the server takes them, and more letters than it keeps of one sender.
    body = b"x" * (scheduler.max_payload_bytes - 1024)
    messages += [Outgoing(subject=hostile, data=body, message_id=f"big{n}") for n in range(3)]
    messages += [Outgoing(subject=hostile, data=b"x", message_id=f"f{n}") for n in range(flood)]
    messages += [Outgoing(subject=hostile, data=b"end", message_id="end")]
    began = time.monotonic()
    consuming = asyncio.create_task(scheduler.consume(what, refuse))
    assert set(await scheduler.publish_all(messages, timeout_s=PATIENCE_S)) == {None}
    async with asyncio.timeout(PATIENCE_S):
        await handled.wait()
    passed_s = time.monotonic() - began
    consuming.cancel()

    letters = [one for one in await scheduler.letters.latest(1000) if one.consumer == "flooded"]
    of_node = {
        node: [one for one in letters if one.subject == events.reports_subject(node)]
        for node in ("node-0", "node-1")
    }
    assert [one.data for one in of_node["node-0"]] == [b"honest"]
    assert len(of_node["node-1"]) == LETTERS_OF_A_SENDER
    lines = [one for one in caplog.records if one.message == "Dead-lettered a message"]
    assert 2 <= len(lines) <= 2 + passed_s
    assert scheduler.dead_letters == flood + 4


async def test_of_a_large_message_the_beginning_is_kept_and_not_sent_again(scheduler: Bus) -> None:
    async def refuse(message: Message) -> None:
        raise InvalidRequest("report is malformed")

    what = Subscription(
        stream=events.REPORTS_STREAM,
        subject=events.reports_subject("large"),
        consumer="large",
    )
    size = scheduler.max_payload_bytes - 1024
    large = Outgoing(subject=what.subject, data=b"x" * size, message_id="large")
    before = await scheduler.letters.count()
    consuming = asyncio.create_task(scheduler.consume(what, refuse))
    assert await scheduler.publish_all([large]) == [None]
    await _until_kept(scheduler, before + 1)
    consuming.cancel()

    [letter] = await scheduler.letters.latest(1)
    assert (letter.size_bytes, len(letter.data)) == (size, MAX_LETTER_BYTES)
    with pytest.raises(InvalidRequest, match=f"only the first {MAX_LETTER_BYTES} of its {size} "):
        await scheduler.letters.send_again(letter.sequence)


async def _until_kept(scheduler: Bus, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await scheduler.letters.count() < count:
            await asyncio.sleep(0.02)
