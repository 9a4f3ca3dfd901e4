"""A bus over a real NATS, and what its tests send over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, Deliver, Message, Outgoing, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import Unavailable
from hamicommon.settings import NatsSettings

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


async def connected(bus: Bus) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not bus.connected_for_s:
            await asyncio.sleep(0.02)


def outgoing(message_id: str, subject: str = "hami.inventory.v1.a") -> Outgoing:
    body = inventory(f"n{message_id}").model_dump_json().encode()
    return Outgoing(subject=subject, data=body, message_id=message_id)
