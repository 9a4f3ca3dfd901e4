"""The node-agents of all nodes, played by one process over the real bus.

`python -m bench.scale.agents --nats URL --nodes N`: each node's inventory once every 10 s, evenly
spread, as `hami_node_agent` publishes it (the same payload, stored and acknowledged), and an answer
to each question whether a node can take a pod, followed by the report that it was allocated. With
`--at-once` every inventory is published once, as after the start of a whole cluster, and it ends.
A line of JSON per second on standard output has what was sent since the start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from datetime import UTC, datetime

import uvloop
from hamicommon import events
from hamicommon.bus.client import Bus, Outgoing
from hamicommon.bus.connecting import open_bus
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.settings import NatsSettings

from bench.filter.cluster import names_of
from bench.filter.objects import CARDS, MEMORY_MIB, card_uuid

TICK_S = 0.1
MAX_AT_ONCE = 256
_SEQUENCE, _AT = 987_654_321, datetime(2001, 1, 1, tzinfo=UTC)
"""Placeholders in a template, for what changes."""


class PlayedAgents:
    """Publishes inventories, answers for all nodes."""

    def __init__(self, bus: Bus, nodes: int) -> None:
        self._bus = bus
        self._agent_id = uuid.uuid4().hex
        self._names = names_of(nodes)
        self._parts = [self._template(name) for name in self._names]
        self._subjects = [events.inventory_subject(name) for name in self._names]
        self._sequence = 0
        self.counted = {"messages": 0, "bytes": 0, "failed": 0, "offered": 0, "late_s": 0.0}

    def _template(self, name: str) -> list[bytes]:
        cards = tuple(
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
        )
        payload = events.Inventory(
            node=name,
            agent_id=self._agent_id,
            sequence=_SEQUENCE,
            observed_at=_AT,
            devices=cards,
        ).model_dump_json()
        before, rest = payload.split(str(_SEQUENCE))
        between, after = rest.split("2001-01-01T00:00:00Z")
        return [before.encode(), between.encode(), after.encode()]

    async def publish(self, numbers: range) -> None:
        """One inventory of each of these nodes."""
        self._sequence += 1
        at = datetime.now(UTC).isoformat().encode()
        sequence = str(self._sequence).encode()
        for first in range(numbers.start, numbers.stop, MAX_AT_ONCE):
            chunk = range(first, min(first + MAX_AT_ONCE, numbers.stop))
            messages = [
                Outgoing(
                    subject=self._subjects[number],
                    data=b"".join(
                        part
                        for pair in zip(self._parts[number], (sequence, at, b""), strict=True)
                        for part in pair
                    ),
                    message_id=f"{self._agent_id}:{number}:{self._sequence}",
                )
                for number in chunk
            ]
            answers = await self._bus.publish_all(messages, timeout_s=10.0)
            self.counted["messages"] += len(messages)
            self.counted["bytes"] += sum(len(each.data) for each in messages)
            self.counted["failed"] += sum(each is not None for each in answers)

    async def beat(self) -> None:
        """Each node once in HEARTBEAT_S, until cancelled."""
        ticks = round(events.HEARTBEAT_S / TICK_S)
        began_s, tick = time.monotonic(), 0
        while True:
            part = tick % ticks
            count = len(self._names)
            await self.publish(range(count * part // ticks, count * (part + 1) // ticks))
            tick += 1
            ahead_s = began_s + tick * TICK_S - time.monotonic()
            self.counted["late_s"] = round(max(0.0, -ahead_s), 2)
            await asyncio.sleep(max(0.0, ahead_s))

    async def respond(self, subject: str, body: bytes) -> events.Readiness:
        """The node can take the pod; that it was allocated is reported at once."""
        del subject
        asked = events.ReadinessRequest.model_validate_json(body)
        if asked.grant is not None:
            self.counted["offered"] += 1
            asyncio.get_running_loop().create_task(self._report(asked.grant))
        return events.Readiness(
            node=asked.node, ready=True, taken=asked.grant is not None, late=True
        )

    async def _report(self, grant: Grant) -> None:
        report = events.Allocated(
            report_id=uuid.uuid4().hex,
            node=NodeName(grant.node),
            allocation_id=grant.allocation_id,
            pod_uid=grant.pod_uid,
            token=grant.token,
            at=datetime.now(UTC),
        )
        subject = events.reports_subject(grant.node)
        try:
            await self._bus.publish(subject, report, message_id=report.report_id, timeout_s=10.0)
        except Unavailable:
            self.counted["failed"] += 1


async def _show(agents: PlayedAgents) -> None:
    while True:
        print(json.dumps(agents.counted), flush=True)
        await asyncio.sleep(1.0)


async def play(url: str, nodes: int, *, at_once: bool) -> None:
    """Until cancelled, or with `at_once` until each inventory was published."""
    async with open_bus(NatsSettings(url=url), "played", owns_streams=True) as bus:
        agents = PlayedAgents(bus, nodes)
        if at_once:
            await agents.publish(range(nodes))
            print(json.dumps(agents.counted), flush=True)
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(agents.beat())
            tasks.create_task(_show(agents))
            tasks.create_task(bus.serve("hami.agents.readiness.*", "played", agents.respond))


def main() -> None:
    """Plays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--at-once", action="store_true")
    given = parser.parse_args()
    uvloop.run(play(given.nats, given.nodes, at_once=given.at_once))


if __name__ == "__main__":
    main()
