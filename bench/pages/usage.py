"""Usage from the bus to Postgres: samples a second, processor time, memory and disk.

`make bench-pages ARGS="--way usage"`: the nodes of a ledger with 1000 nodes of 8 cards report what
their pods use, first as fast as it is taken, then at 20,000 samples/s. Prints both, and writes
bench/results/usage.json; fails when 20,000/s are not kept up with, or when a sample is lost or
there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
from hamicommon import events
from hamicommon.bus.client import Bus, Outgoing
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.events import ContainerSample, DeviceSample, Usage
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings

from bench.figures import family_cpu_s, print_machine, resident_mb, write_results
from bench.pages.service import Service, service

GOAL = 20_000
CARDS = 8
PODS_PER_NODE = 16
AHEAD_ROUNDS = 8
"""Rounds that may wait on the bus, whose stream drops its oldest at 512 MiB."""
LAG_S = 10.0
"""At 20,000/s the last sample is stored so soon after it was sent, else the rate is not kept."""
PATIENCE_S = 600.0
_GIB = 1 << 30
_MARK = "2001-01-01T00:00:00Z"
_HELD = """
SELECT a.node, a.pod_uid, a.namespace, a.pod_name, x.device_uuid
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
"""
Row = dict[str, Any]


class Load:
    """The reports of all nodes; a round is one of each."""

    def __init__(self, cards: list[Any], held: list[Any]) -> None:
        """Rows of the ledger: node, index and uuid of each card; `_HELD`."""
        devices: dict[str, list[DeviceSample]] = defaultdict(list)
        for card in cards:
            devices[card["node"]].append(
                DeviceSample(
                    uuid=card["uuid"],
                    index=card["index"],
                    type="NVIDIA A100-SXM4-80GB",
                    memory_used_bytes=(card["index"] + 1) * _GIB,
                    memory_total_bytes=80 * _GIB,
                    gpu_percent=float(card["index"]),
                )
            )
        containers: dict[str, list[ContainerSample]] = defaultdict(list)
        for pod in held:
            containers[pod["node"]].append(
                ContainerSample(
                    pod_uid=pod["pod_uid"],
                    namespace=pod["namespace"],
                    pod=pod["pod_name"],
                    container="main",
                    vdevice_index=0,
                    uuid=pod["device_uuid"],
                    memory_used_bytes=_GIB,
                    memory_limit_bytes=8 * _GIB,
                    core_percent=7.0,
                    core_limit_percent=30,
                    processes=1,
                )
            )
        self.samples = len(cards) + len(held)
        """Samples of a round."""
        self.round = timedelta(seconds=self.samples / GOAL)
        """Time between two rounds at the goal's rate."""
        marked = datetime.fromisoformat(_MARK)
        self._texts = {
            node: Usage(
                node=node,
                agent_id=f"agent-{node}",
                sequence=0,
                sampled_at=marked,
                devices=tuple(devices[node]),
                containers=tuple(containers[node]),
            )
            .model_dump_json()
            .replace(_MARK, "%(at)s")
            .replace('"sequence":0', '"sequence":%(round)s')
            for node in devices
        }

    def rounds(self, count: int, since: datetime) -> Iterator[list[Outgoing]]:
        """The messages of each; made from texts, so that the sender needs little time."""
        for number in range(count):
            values = {"at": (since + number * self.round).isoformat(), "round": number}
            yield [
                Outgoing(
                    subject=events.usage_subject(node),
                    data=(text % values).encode(),
                    message_id=f"{node}:{values['at']}",
                )
                for node, text in self._texts.items()
            ]


class Measured:
    """The service, and what each process has used."""

    def __init__(self, found: Service, http: httpx.AsyncClient) -> None:
        self._http = http
        self.pids = {"service": found.pid, "Postgres": found.postgres_pid, "sender": os.getpid()}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each so far."""
        return {name: family_cpu_s(pid) for name, pid in self.pids.items()}

    async def count_stored(self) -> int:
        """How many samples the service has counted."""
        name = 'hami_usage_samples_total{result="stored"} '
        for line in (await self._http.get("/metrics")).text.splitlines():
            if line.startswith(name):
                return int(float(line.rpartition(" ")[2]))
        return 0

    async def until_stored(self, count: int) -> None:
        """Wait for it. Raises: SystemExit if that takes too long."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := await self.count_stored()) < count:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{found} of {count} samples stored after {PATIENCE_S:g} s")
            await asyncio.sleep(0.1)


async def _ingest(
    at: Measured, bus: Bus, load: Load, count: int, since: datetime, *, paced: bool
) -> Row:
    """Reports over the bus, until the last sample is stored."""
    stored = await at.count_stored()
    before, began = at.cpu_s(), time.perf_counter()
    for number, messages in enumerate(load.rounds(count, since)):
        if paced:
            due_s = number * load.round.total_seconds() - (time.perf_counter() - began)
            await asyncio.sleep(max(0.0, due_s))
        else:
            await at.until_stored(stored + (number - AHEAD_ROUNDS) * load.samples)
        for error in filter(None, await bus.publish_all(messages, timeout_s=30)):
            raise error
    sent, sent_at = count * load.samples, time.perf_counter()
    await at.until_stored(stored + sent)
    ended = time.perf_counter()
    row: Row = {
        "what": f"at {GOAL}/s" if paced else "as fast as it goes",
        "samples": sent,
        "samples_per_s": round(sent / (ended - began)),
        "behind_s": round(ended - sent_at, 2),
        "service_mb": round(resident_mb(at.pids["service"])),
    }
    row |= {
        f"{name}_us": round(1e6 * (spent - before[name]) / sent, 1)
        for name, spent in at.cpu_s().items()
    }
    print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return row


@asynccontextmanager
async def _settling_bus(url: str) -> AsyncIterator[Bus]:
    """The scheduler's connection, which acknowledges what the service has settled."""
    async with open_bus(NatsSettings(url=url), SCHEDULER_USER, owns_streams=True) as bus:
        settling = asyncio.create_task(bus.settle_deliveries("scheduler"))
        try:
            yield bus
        finally:
            await end([settling])


async def _measure(found: Service, count: int) -> Row:
    connection = await asyncpg.connect(found.dsn)
    # Of an hour back at most: older ones are refused.
    since = datetime.now(UTC) - timedelta(minutes=30)
    size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('usage_samples')"
    rows = "SELECT count(*) FROM usage_samples"
    try:
        load = Load(
            await connection.fetch("SELECT node, index, uuid FROM devices"),
            await connection.fetch(_HELD),
        )
        before_bytes, before = await connection.fetchval(size), await connection.fetchval(rows)
        async with (
            _settling_bus(found.nats_url) as bus,
            httpx.AsyncClient(base_url=found.api_url, timeout=30) as http,
        ):
            at = Measured(found, http)
            steps = [await _ingest(at, bus, load, count, since, paced=False)]
            since += count * load.round
            steps.append(await _ingest(at, bus, load, count, since, paced=True))
        stored = await connection.fetchval(rows) - before
        written = int(await connection.fetchval(size) - before_bytes)
    finally:
        await connection.close()
    sent = sum(row["samples"] for row in steps)
    print(f"{stored} of {sent} stored; {written / sent:.0f} MB of disk a million")
    return {"steps": steps, "sent": sent, "stored": stored, "disk_mb_per_million": written // sent}


def run(args: argparse.Namespace) -> None:
    """Measure, print, and fail if the goal is missed."""
    where = print_machine()
    with service(args.nodes, cards=CARDS, pods=args.nodes * PODS_PER_NODE) as found:
        result = asyncio.run(_measure(found, args.reports))
    write_results("usage", {"machine": where, **result})
    if result["sent"] != result["stored"]:
        raise SystemExit("samples were lost, or are there twice")
    if (behind_s := result["steps"][-1]["behind_s"]) > LAG_S:
        raise SystemExit(f"{behind_s} s behind at {GOAL} samples/s")
