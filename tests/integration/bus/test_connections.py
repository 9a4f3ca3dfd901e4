"""Servers that start late, are killed or fall silent; services that end during a request."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from hamicommon import events
from hamicommon.bus import connecting
from hamicommon.bus.client import Bus, NobodyAnswers
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import Unavailable
from hamicommon.process.outages import Outage
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats as nats_server
from hamilocal.system.layout import ensure_credentials

from tests.integration.bus.conftest import (
    INVENTORIES,
    Inbox,
    inventory,
    publish_once_back,
    wait_until_connected,
)
from tests.processes import running, start
from tests.waiting import PATIENCE_S, eventually


async def test_a_bus_opened_before_the_server_connects_when_it_comes(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
        assert not bus.connected
        with pytest.raises(Unavailable, match="not connected"):
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")

        with running(plan, die_with_parent=True):
            await wait_until_connected(bus)
            await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")


async def test_an_outage_of_the_server_is_two_lines_however_often_it_was_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, connecting.__name__)
    tried = asyncio.Event()
    tries = 0

    class Counted(Outage):
        def on_failure(self, error: BaseException | str) -> None:
            nonlocal tries
            super().on_failure(error)
            tries += 1
            if tries == 3:
                tried.set()

    monkeypatch.setattr(connecting, "Outage", Counted)
    monkeypatch.setattr(connecting, "_RECONNECT_WAIT_S", 0.05)
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    first = start(plan, die_with_parent=True)
    async with open_bus(NatsSettings(url=plan.url), "test") as bus, asyncio.timeout(PATIENCE_S):
        await wait_until_connected(bus)
        first.kill()
        await tried.wait()
        with running(plan, die_with_parent=True):
            await wait_until_connected(bus)

            while len(caplog.records) < 3:
                await asyncio.sleep(0.01)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]

    assert lines == [
        ("INFO", "Connected to NATS"),
        ("WARNING", "Failed to reach NATS, retrying"),
        ("INFO", "Connected to NATS"),
    ]


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
            await publish_once_back(bus, inventory("a", 2))

            # The first may come again: its acknowledgement died with the server.
            while b'"sequence":2' not in (await inbox.next()).data:
                pass
        consuming.cancel()


async def test_a_server_that_falls_silent_counts_as_away_within_seconds(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    plan = nats_server.prepare(tmp_path / "nats")
    with running(plan, die_with_parent=True) as server:
        async with open_bus(NatsSettings(url=plan.url), "test", owns_streams=True) as bus:
            await wait_until_connected(bus)
            os.kill(server.value.process.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while bus.connected:
                        await asyncio.sleep(0.1)
                with pytest.raises(Unavailable, match="not connected"):
                    await bus.publish("hami.inventory.v1.a", inventory("a"), message_id="1")
            finally:
                os.kill(server.value.process.pid, signal.SIGCONT)
            await wait_until_connected(bus)


async def test_a_service_ends_in_order_after_the_server_went_away_under_tls(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    made = ensure_credentials(tmp_path / "tls", serving=("nats",))
    plan = nats_server.prepare(tmp_path / "nats")
    config = tmp_path / "nats" / "nats.conf"
    tls = {"cert_file": str(made.certificate("nats")), "key_file": str(made.key("nats"))}
    config.write_text(json.dumps({**json.loads(config.read_text()), "tls": tls}))
    settings = NatsSettings(url=plan.url.replace("nats:", "tls:"), tls_ca_file=made.ca)

    async def answer(_subject: str, _data: bytes) -> events.Readiness:
        return events.Readiness(node="a", ready=True)

    server = start(plan, die_with_parent=True)
    async with open_bus(settings, SCHEDULER_USER, owns_streams=True) as bus:
        await wait_until_connected(bus)
        serving = asyncio.create_task(bus.serve(events.readiness_subject("a"), "", answer))
        await _until_served(
            lambda: bus.request(events.readiness_subject("a"), events.ReadinessRequest(node="a"))
        )
        server.kill()
        await eventually(lambda: not bus.connected, "the connection to be gone")
        # Its farewell to the server stays unsent.
        serving.cancel()
        await asyncio.wait([serving])
    assert not bus.connected


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

    async with open_bus(NatsSettings(url=nats_url), SCHEDULER_USER) as other:
        serving = asyncio.create_task(bus.serve(events.readiness_subject("a"), "", answer))
        first, second = (asyncio.ensure_future(_until_served(partial(ask, other))) for _ in "12")
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        serving.cancel()
        may_answer.set()

        assert {b"stopping" in reply for reply in await asyncio.gather(first, second)} == {True}
        await asyncio.wait([serving])
        with pytest.raises(NobodyAnswers):
            await ask(other)


async def _until_served(ask: Callable[[], Awaitable[bytes]]) -> bytes:
    """Ask until a service serves the subject; a service that is reached must answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except NobodyAnswers:
                await asyncio.sleep(0)
