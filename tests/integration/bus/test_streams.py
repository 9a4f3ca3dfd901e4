"""Streams have the limits that are stated."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import nats
import pytest
from hamicommon import events
from hamicommon.bus import streams
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server
from nats.js.api import StorageType
from nats.js.errors import NotFoundError

from tests.integration.bus.conftest import inventory
from tests.processes import running
from tests.waiting import PATIENCE_S, eventually


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
            assert "stream differs from its configuration" in caplog.text
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
