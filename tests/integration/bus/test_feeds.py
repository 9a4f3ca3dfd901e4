"""Feeds that the scheduler opens and the webhook follows."""

from __future__ import annotations

import asyncio

import pytest
from hamicommon import events
from hamicommon.bus import feeds
from hamicommon.bus.client import FeedKind
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.feeds import FeedRequest, Feeds
from hamicommon.bus.permissions import FEEDS_SUBJECT, SCHEDULER_USER, WEBHOOK_USER
from hamicommon.errors import InvalidRequest
from hamicommon.process.shutdown import end
from nats.js import JetStreamContext

from tests.integration.bus.conftest import Inbox, inventory, settings_of
from tests.waiting import eventually


async def test_the_newest_of_each_subject_comes_first_and_again_when_the_feed_was_lost(
    url: str, js: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(feeds, "MAX_SILENCE_S", 1.0)
    inbox = Inbox()
    async with (
        open_bus(settings_of(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True) as scheduler,
        open_bus(settings_of(url, WEBHOOK_USER), WEBHOOK_USER) as webhook,
    ):

        async def publish(node: str, sequence: int) -> None:
            await scheduler.publish(
                events.inventory_subject(node),
                inventory(node, sequence),
                message_id=f"{node}{sequence}",
            )

        async def next_one() -> tuple[str, int]:
            found = events.Inventory.model_validate_json((await inbox.next()).data)
            return found.node, found.sequence

        for sequence in (1, 2):
            await publish("a", sequence)
        await publish("b", 1)
        tasks = [asyncio.create_task(webhook.follow_feed(FeedKind.INVENTORIES, inbox.take))]
        tasks.append(asyncio.create_task(scheduler.serve_feeds("s")))
        assert [await next_one() for _ in "ab"] == [("a", 2), ("b", 1)]
        await publish("b", 2)
        assert await next_one() == ("b", 2)

        [consumer] = await js.consumers_info(events.INVENTORY_STREAM)
        await js.delete_consumer(events.INVENTORY_STREAM, consumer.name)
        assert [await next_one() for _ in "ab"] == [("a", 2), ("b", 2)]
        await end(tasks)


@pytest.mark.parametrize(
    "inbox",
    [
        "hami.grants.v1.a",
        "_INBOX_agent-a.x",
        "_INBOX_hami-webhook.>",
        "_INBOX_hami-webhook.*",
        "_INBOX_hami-webhook.x.y",
        "_INBOX_hami-webhook",
        "$JS.API.STREAM.PURGE.HAMI_GRANTS",
    ],
)
async def test_a_feed_goes_to_an_inbox_of_the_webhook_only(
    url: str, js: JetStreamContext, inbox: str
) -> None:
    async with open_bus(settings_of(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True):
        body = FeedRequest(feed=FeedKind.INVENTORIES, inbox=inbox).model_dump_json().encode()
        with pytest.raises(InvalidRequest, match="feeds go to _INBOX_hami-webhook"):
            await Feeds(js).respond(FEEDS_SUBJECT, body)
        assert await js.consumers_info(events.INVENTORY_STREAM) == []


async def test_the_server_forgets_a_feed_that_nobody_reads(
    url: str, js: JetStreamContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "FORGOTTEN_AFTER_S", 0.5)
    async with open_bus(settings_of(url, SCHEDULER_USER), SCHEDULER_USER, owns_streams=True):
        inbox = "_INBOX_hami-webhook.x"
        body = FeedRequest(feed=FeedKind.INVENTORIES, inbox=inbox).model_dump_json().encode()
        await Feeds(js).respond(FEEDS_SUBJECT, body)

        async def forgotten() -> bool:
            return not await js.consumers_info(events.INVENTORY_STREAM)

        await eventually(forgotten, "the feed forgotten")
