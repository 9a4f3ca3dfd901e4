"""What a hostile sender of dead letters can't make the scheduler do (audit H8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import nats.errors
import nats.js.errors
import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.consumer import Message
from hamicommon.bus.dead_letters import CONSUMER_HEADER, REASON_HEADER, SUBJECT_HEADER
from hamicommon.bus.permissions import agent_user
from hamicommon.errors import InvalidRequest
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats_config import NatsUser, agent_nats_user, webhook_nats_user
from hamilocal.servers.processes import running
from pydantic import SecretStr

from tests.integration.bus.conftest import Inbox, inventory
from tests.waiting import PATIENCE_S

SCHEDULER = "hami-scheduler"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the scheduler, the webhook and the agents of two nodes as users."""
    folder: Path = tmp_path_factory.mktemp("nats")
    users = [NatsUser(name=SCHEDULER, password="x"), webhook_nats_user("x")]
    users += [agent_nats_user(node, "x") for node in ("node-0", "node-1")]
    plan = nats_server.prepare(folder / "nats", users=users)
    with running(plan, die_with_parent=True):
        yield plan.url


def _as(url: str, user: str) -> NatsSettings:
    return NatsSettings(url=url, user=user, password=SecretStr("x"))


@pytest.fixture
async def scheduler(url: str) -> AsyncIterator[Bus]:
    async with open_bus(_as(url, SCHEDULER), SCHEDULER, owns_streams=True) as opened:
        yield opened


async def _bury(url: str, user: str, letter_subject: str, headers: dict[str, str]) -> int:
    """Publishes a letter as that user; its sequence. Raises: TimeoutError when it may not."""
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
    """The refusal is seen as a publish that nobody acknowledges."""


@pytest.mark.parametrize(
    "claimed",
    [
        "$JS.API.STREAM.PURGE.HAMI_USAGE",
        "$SYS.REQ.SERVER.PING",
        "hami.grants.v1.node-1",
        "hami.grants.snapshot.node-0",
        "hami.inventory.v1.node-0",
        "hami.dead.v1.HAMI_GRANTS.agent-node-0",
        "hami.grants.v1.>",
        "hami.grants.v1.node-0 node-1",
        "",
    ],
)
async def test_a_letter_of_an_agent_goes_nowhere_but_to_its_own_grants(
    url: str, scheduler: Bus, claimed: str
) -> None:
    user = agent_user("node-0")
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
        f"hami.dead.v1.HAMI_GRANTS.{user}",
        {SUBJECT_HEADER: claimed, REASON_HEADER: "update, then send again", CONSUMER_HEADER: "x"},
    )
    await heard.next()  # the letter itself

    with pytest.raises(InvalidRequest, match=f"letter {sequence}: .*{user} may not"):
        await scheduler.letters.send_again(sequence)

    await client.publish("hami.test.end", b"")
    assert (await heard.next()).subject == "hami.test.end"
    assert sequence in [one.sequence for one in await scheduler.letters.latest(5)]
    await client.close()


async def test_an_agent_buries_as_nobody_else(url: str, scheduler: Bus) -> None:
    del scheduler  # it made the streams
    headers = {SUBJECT_HEADER: "hami.grants.v1.node-1"}
    for subject in (
        "hami.dead.v1.HAMI_GRANTS.agent-node-1",
        "hami.dead.v1.HAMI_INVENTORY.hami-scheduler",
        "hami.dead.v1.HAMI_GRANTS",
    ):
        with pytest.raises((TimeoutError, nats.errors.Error)):
            await _bury(url, agent_user("node-0"), subject, headers)


async def test_the_webhooks_letters_are_never_sent_to_those_who_write_the_ledger(
    url: str, scheduler: Bus
) -> None:
    letter = "hami.dead.v1.HAMI_INVENTORY.hami-webhook"
    headers = {SUBJECT_HEADER: "hami.inventory.v1.node-0"}
    sequence = await _bury(url, "hami-webhook", letter, headers)

    with pytest.raises(InvalidRequest, match="hami-webhook may not"):
        await scheduler.letters.send_again(sequence)


async def test_a_letter_of_an_older_release_is_shown_and_not_sent(url: str, scheduler: Bus) -> None:
    headers = {SUBJECT_HEADER: "hami.grants.v1.node-0"}
    sequence = await _bury(url, SCHEDULER, "hami.dead.v1.HAMI_GRANTS", headers)

    [letter] = await scheduler.letters.latest(1)
    assert (letter.sequence, letter.stream, letter.user) == (sequence, "HAMI_GRANTS", "")
    with pytest.raises(InvalidRequest, match="an older release"):
        await scheduler.letters.send_again(sequence)


async def test_an_agents_own_grant_comes_back_to_it_alone(url: str, scheduler: Bus) -> None:
    user, inbox, able = agent_user("node-0"), Inbox(), asyncio.Event()

    async def refuse(message: Message) -> None:
        if not able.is_set():
            raise InvalidRequest("version is 9")
        await inbox.take(message)

    subject = events.grants_subject("node-0")
    what = Subscription(stream=events.GRANTS_STREAM, subject=subject, consumer=user, ephemeral=True)
    async with open_bus(_as(url, user), user) as agent:
        consuming = asyncio.create_task(agent.consume(what, refuse))
        before = await scheduler.letters.kept()
        await scheduler.publish(subject, inventory("node-0"), message_id="grant")
        async with asyncio.timeout(PATIENCE_S):
            while await scheduler.letters.kept() == before:
                await asyncio.sleep(0.02)
        [letter] = await scheduler.letters.latest(1)
        assert (letter.user, letter.subject) == (user, subject)
        able.set()

        await scheduler.letters.send_again(letter.sequence)

        assert (await inbox.next()).subject == subject
        consuming.cancel()
