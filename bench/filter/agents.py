"""The node-agents of all nodes, played by one process over the real bus.

`python -m bench.filter.agents --nats URL --nodes N`: each node's inventory once every 10 s, evenly
spread, as `hami_node_agent` publishes it (the same payload, stored and acknowledged), until it is
ended.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import httpx
import uvloop
from hamicommon import events
from hamicommon.bus.client import Outgoing
from hamicommon.bus.connecting import open_bus
from hamicommon.settings import NatsSettings

from bench.figures import family_cpu_s
from bench.filter.cluster import names_of
from bench.filter.objects import CARDS, MEMORY_MIB, card_uuid
from bench.filter.system import Bench
from bench.servers import process

TICK_S = 0.1
STEADY_S = 40.0
_SEQUENCE, _AT = 987_654_321, datetime(2001, 1, 1, tzinfo=UTC)
"""Placeholders in a template, for what changes."""


@contextmanager
def agents(bench: Bench) -> Iterator[None]:
    """Inside the block all nodes of the bench report."""
    module = [sys.executable, "-m", "bench.filter.agents", "--nats", bench.servers.nats_url]
    log = bench.folder / "agents.log"
    with process([*module, "--nodes", str(len(bench.nodes))], {}, log) as played:
        yield
        if played.poll() is not None:
            raise SystemExit(f"the played agents ended:\n{log.read_text()[-2000:]}")


def heartbeats(bench: Bench) -> dict[str, float]:
    """Cost of the nodes' reports per second, once each of them was compared with the ledger."""
    time.sleep(2 * events.HEARTBEAT_S)
    before, began_s = _read_counters(bench), time.monotonic()
    time.sleep(STEADY_S)
    seconds = time.monotonic() - began_s
    found = {
        name: round((value - before[name]) / seconds, 2)
        for name, value in _read_counters(bench).items()
    }
    return found | {"oldest_heartbeat_s": round(asyncio.run(_oldest_s(bench.servers.dsn)), 1)}


def _read_counters(bench: Bench) -> dict[str, float]:
    nats = httpx.get(f"{bench.servers.nats_monitor}/varz", timeout=30).json()
    return {
        "nats_messages": nats["in_msgs"],
        "nats_kb": nats["in_bytes"] / 1000,
        "scheduler_cores": family_cpu_s(bench.pid),
        "postgres_cores": family_cpu_s(bench.servers.postgres_pid),
        "nats_cores": family_cpu_s(bench.servers.nats_pid),
    }


async def _oldest_s(dsn: str) -> float:
    connection: Any = await asyncpg.connect(dsn)
    try:
        return float(
            await connection.fetchval(
                "SELECT max(extract(epoch FROM now() - inventory_at)) FROM nodes"
                " WHERE gone_at IS NULL"
            )
        )
    finally:
        await connection.close()


def _template(name: str, agent_id: str) -> tuple[bytes, bytes, bytes]:
    """An inventory around its sequence number and its time."""
    payload = events.Inventory(
        node=name,
        agent_id=agent_id,
        sequence=_SEQUENCE,
        observed_at=_AT,
        devices=tuple(
            events.InventoryDevice(
                uuid=card_uuid(name, index),
                index=index,
                vendor="NVIDIA",
                type="NVIDIA A100-SXM4-80GB",
                slots=10,
                memory_mib=MEMORY_MIB,
                core_percent=100,
            )
            for index in range(CARDS)
        ),
    ).model_dump_json()
    before, rest = payload.split(str(_SEQUENCE))
    between, after = rest.split("2001-01-01T00:00:00Z")
    return before.encode(), between.encode(), after.encode()


async def play(url: str, nodes: int) -> None:
    """Each node once in HEARTBEAT_S, until cancelled."""
    agent_id, names = uuid.uuid4().hex, names_of(nodes)
    templates = [_template(name, agent_id) for name in names]
    parts = round(events.HEARTBEAT_S / TICK_S)
    began_s, tick = time.monotonic(), 0
    async with open_bus(NatsSettings(url=url), "played", owns_streams=True) as bus:
        while True:
            sequence, part = divmod(tick, parts)
            at = datetime.now(UTC).isoformat().encode()
            messages = [
                Outgoing(
                    subject=events.inventory_subject(names[number]),
                    data=b"%b%d%b%b%b" % (before, sequence + 1, between, at, after),
                    message_id=f"{agent_id}:{number}:{sequence}",
                )
                for number in range(nodes * part // parts, nodes * (part + 1) // parts)
                for before, between, after in (templates[number],)
            ]
            for error in filter(None, await bus.publish_all(messages, timeout_s=10.0)):
                raise error
            tick += 1
            await asyncio.sleep(max(0.0, began_s + tick * TICK_S - time.monotonic()))


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(play(given.nats, given.nodes))


if __name__ == "__main__":
    main()
