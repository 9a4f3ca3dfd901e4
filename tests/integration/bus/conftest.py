"""A bus over a real NATS, and what its tests send over it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, Deliver, Message, Outgoing, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import Unavailable
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server
from hamilocal.servers.data.nats import NatsUser, agent_nats_user, service_nats_users
from nats.js import JetStreamContext
from pydantic import SecretStr

from tests.processes import running
from tests.waiting import PATIENCE_S


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
        async with asyncio.timeout(PATIENCE_S):
            return await self.messages.get()


def settings_of(url: str, user: str) -> NatsSettings:
    return NatsSettings(url=url, user=user, password=SecretStr("x"))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server with the users of an installation of one node, and `admin`."""
    tmp_path.chmod(0o755)
    users = [NatsUser(name="admin", password="x"), agent_nats_user("a", "x")]
    users += service_nats_users(lambda _user: "x")
    plan = nats_server.prepare(tmp_path / "nats", users=users)
    with running(plan, die_with_parent=True):
        yield plan.url


@pytest.fixture
async def js(url: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(url, user="admin", password="x")
    yield client.jetstream()
    await client.close()


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with open_bus(NatsSettings(url=nats_url), SCHEDULER_USER, owns_streams=True) as opened:
        yield opened


async def publish_once_back(bus: Bus, payload: events.Inventory) -> None:
    """The client needs a moment to notice that its server was killed."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bus.publish("hami.inventory.v1.a", payload, message_id="back")
            except Unavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def wait_until_connected(bus: Bus) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not bus.connected_for_s:
            await asyncio.sleep(0.02)


def outgoing(message_id: str, subject: str = "hami.inventory.v1.a") -> Outgoing:
    body = inventory(f"n{message_id}").model_dump_json().encode()
    return Outgoing(subject=subject, data=body, message_id=message_id)
