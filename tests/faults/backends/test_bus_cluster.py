"""One server of a NATS cluster dies while facts are published; streams have three copies."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import nats
import pytest
from hamicommon import events
from hamicommon.bus.client import Bus, Deliver, Message, Outgoing, Subscription
from hamicommon.bus.connecting import open_bus
from hamicommon.settings import NatsSettings
from hamilocal.servers.binaries import nats_server
from hamilocal.servers.data.nats import nats_ready
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from nats.js.errors import NotFoundError, ServiceUnavailableError

from tests import measured
from tests.faults.stage import MEASURED
from tests.processes import ServerProcess, start
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

SERVERS = 3
FACTS = 300
INTERVAL_S = 0.02
KILLED_AT = 100
SUBJECT = "hami.events.v1.admission.refused"
FACTS_OF_TEST = Subscription(
    stream=events.EVENTS_STREAM, subject=SUBJECT, consumer="test", deliver=Deliver.ALL
)


@contextmanager
def nats_cluster(folder: Path) -> Iterator[dict[str, ServerProcess]]:
    """Three servers of one cluster, by their names."""
    routes = {f"hami-{number}": free_port() for number in range(SERVERS)}
    with ExitStack() as stack:
        found = {}
        for name in routes:
            found[name] = start(_server(folder / name, name, routes), die_with_parent=True)
            stack.callback(found[name].stop)
        yield found


def _server(folder: Path, name: str, routes: dict[str, int]) -> ServerPlan:
    folder.mkdir()
    port, config = free_port(), folder / "nats.conf"
    peers = [f"nats://{LOOPBACK}:{route}" for peer, route in routes.items() if peer != name]
    config.write_text(
        json.dumps(
            {
                "server_name": name,
                "host": LOOPBACK,
                "port": port,
                "jetstream": {"store_dir": str(folder / "jetstream")},
                "cluster": {
                    "name": "hami",
                    "host": LOOPBACK,
                    "port": routes[name],
                    "routes": peers,
                },
            }
        )
    )
    return ServerPlan(
        name=name,
        argv=(str(nats_server()), "--config", str(config)),
        cwd=folder,
        log_path=folder / "nats.log",
        url=f"nats://{LOOPBACK}:{port}",
        port=port,
        probe=partial(nats_ready, port, server_name=name),
    )


async def leader_of(url: str, stream: str) -> str:
    """Wait for the stream's leader, and return the server's name."""
    client = await nats.connect(url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(NotFoundError, ServiceUnavailableError, TimeoutError):
                    info = await client.jetstream().stream_info(stream)
                    assert info.config.num_replicas == SERVERS
                    if info.cluster is not None and info.cluster.leader:
                        return str(info.cluster.leader)
                await asyncio.sleep(0.1)
    finally:
        await client.close()


async def publish(bus: Bus, number: int) -> None:
    """Until it is stored, always under the same id."""
    message = Outgoing(subject=SUBJECT, data=str(number).encode(), message_id=f"fact-{number}")
    async with asyncio.timeout(PATIENCE_S):
        while (await bus.publish_all([message]))[0] is not None:
            await asyncio.sleep(0.1)


@pytest.mark.row(
    point="FAULT-40",
    fault="the leader of three NATS servers is killed under load",
    kind="kill",
    answer="the others have every stored fact; the rest is published again",
    promise="SAFE-6 LIVE-2",
)
async def test_f40_a_cluster_loses_the_server_that_leads_and_no_fact(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with nats_cluster(tmp_path) as servers:
        urls = ",".join(server.value.url for server in servers.values())
        settings = NatsSettings(url=urls, stream_replicas=3)
        async with open_bus(settings, "test", owns_streams=True) as bus:
            leader = await leader_of(servers["hami-0"].value.url, events.EVENTS_STREAM)
            got: list[int] = []
            longest_s, last_s = 0.0, time.monotonic()

            async def take(message: Message) -> None:
                got.append(int(message.data))

            taking = asyncio.create_task(bus.consume(FACTS_OF_TEST, take))
            for number in range(FACTS):
                if number == KILLED_AT:
                    await asyncio.to_thread(servers[leader].kill)
                    last_s = time.monotonic()
                await publish(bus, number)
                longest_s = max(longest_s, time.monotonic() - last_s)
                last_s = time.monotonic()
                await asyncio.sleep(INTERVAL_S)
            async with asyncio.timeout(PATIENCE_S):
                while len(set(got)) < FACTS:
                    await asyncio.sleep(0.1)
            taking.cancel()

        assert sorted(set(got)) == list(range(FACTS))
        MEASURED[request.node.name] = longest_s
        measured.note(
            f"FAULT-40 leader of 3 NATS servers killed at fact {KILLED_AT} of {FACTS}: longest gap "
            f"{longest_s:.1f} s, 0 lost, {len(got) - FACTS} delivered again"
        )
