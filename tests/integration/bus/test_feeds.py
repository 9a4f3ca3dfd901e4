"""Streams with their limits, and the feeds that the scheduler opens and the webhook follows."""

import asyncio
import contextlib
from pathlib import Path

import nats
import pytest
from hamicommon import events
from hamicommon.bus import feeds, streams
from hamicommon.bus.client import Bus, FeedKind
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.feeds import FeedRequest, Feeds
from hamicommon.bus.permissions import FEEDS_SUBJECT, SCHEDULER_USER, WEBHOOK_USER
from hamicommon.errors import InvalidRequest
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server
from nats.js import JetStreamContext
from nats.js.api import StorageType
from nats.js.errors import NotFoundError

from tests.integration.bus.conftest import Inbox, inventory, settings_of
from tests.processes import running
from tests.waiting import PATIENCE_S, eventually


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
            assert "Found a stream that differs from its configuration" in caplog.text
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
            withdrawn = events.GrantWithdrawn(
                allocation_id="1", pod_uid="1", node="a", token=1, reason="test"
            )
            await bus.publish(events.grants_subject("a"), withdrawn, message_id="2")

            for name in (events.INVENTORY_STREAM, "SOMEBODY_ELSES"):
                await js.delete_stream(name)
            async with asyncio.timeout(PATIENCE_S):
                while bus.streams.problems:
                    await asyncio.sleep(0.05)
            info = await js.stream_info(events.INVENTORY_STREAM)
            assert info.config.storage == StorageType.FILE
        await client.close()


async def test_a_stream_that_somebody_deleted_is_made_again(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_INTERVAL_S", 0.05)
    await bus.streams.check()
    client = await nats.connect(nats_url)
    try:
        js = client.jetstream()
        await js.delete_stream(events.USAGE_STREAM)

        async def there() -> bool:
            with contextlib.suppress(NotFoundError):
                return bool(await js.stream_info(events.USAGE_STREAM))
            return False

        await eventually(there, "the stream to be there again")
    finally:
        await client.close()
