"""What the view takes over from the ledger's events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.ledger.view_feed import SUBJECTS, LedgerFollower
from hamicommon.bus.client import Message
from hamicommon.domain.allocations import LIVE_STATES, AllocationState
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.shutdown import end

from tests.unit.scheduler.ledger.test_view import Reader
from tests.waiting import eventually

DEADLINE_S = 30.0
AT = "2026-01-01T00:00:00+00:00"
HEALTH = {
    "version": 1,
    "event_id": 1,
    "node": "n",
    "uuid": "a",
    "healthy": False,
    "reason": "XID 79",
    "at": AT,
}


def allocation_event(version: int, memory_mib: int) -> dict[str, Any]:
    card = {
        "node": "n",
        "uuid": "a",
        "used_slots": 1,
        "used_memory_mib": memory_mib,
        "used_core_percent": 0,
        "device_version": version,
    }
    ids = {"event_id": 1, "sequence": 1, "allocation_id": "1", "pod_uid": "u"}
    names = {"namespace": "default", "pod_name": "p", "node": "n", "state": "reserved"}
    return {"version": 1, **ids, **names, "at": AT, "counters": [card]}


def message(verb: str, payload: dict[str, Any]) -> Message:
    return Message(
        subject=f"hami.events.v1.{verb}",
        data=orjson.dumps(payload),
        stream_sequence=0,
        deliveries=1,
    )


async def relayed(follower: LedgerFollower, verb: str, payload: dict[str, Any]) -> None:
    await follower.relayed(f"hami.events.v1.{verb}", orjson.dumps(payload))


async def loaded() -> tuple[Reader, LedgerSnapshotCache, LedgerFollower]:
    reader = Reader()
    reader.put("a")
    view = LedgerSnapshotCache(reader)
    await view.refresh()
    return reader, view, LedgerFollower(view)


@asynccontextmanager
async def following(follower: LedgerFollower) -> AsyncIterator[None]:
    """It reads nodes again during the block."""
    running = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        await end([running])


def used_mib(view: LedgerSnapshotCache) -> int:
    [card] = view.cluster.cards(NodeName("n"))
    return card.usage.used_memory_mib


async def test_counters_of_another_replica_are_taken_over() -> None:
    _, view, follower = await loaded()

    await follower.handle(message("allocation.reserved", allocation_event(2, 300)))

    assert used_mib(view) == 300


async def test_counters_that_this_replica_announced_are_taken_over_once() -> None:
    _, view, follower = await loaded()

    await relayed(follower, "allocation.reserved", allocation_event(3, 500))
    await relayed(follower, "allocation.reserved", allocation_event(2, 300))

    assert used_mib(view) == 500


async def test_the_usual_steps_of_a_pod_are_not_even_read() -> None:
    _, view, follower = await loaded()

    for verb in ("binding", "bound", "allocated"):
        await follower.relayed(f"hami.events.v1.allocation.{verb}", b"not read")
    with pytest.raises(InvalidRequest):
        await follower.relayed("hami.events.v1.allocation.released", b"read")

    assert used_mib(view) == 0


@pytest.mark.parametrize("by_bus", [True, False], ids=["from the bus", "announced here"])
async def test_a_cards_health_makes_its_node_be_read_again(by_bus: bool) -> None:
    reader, view, follower = await loaded()
    reader.use("a", 700)
    async with following(follower):
        if by_bus:
            await follower.handle(message("device.health", HEALTH))
        else:
            await relayed(follower, "device.health", HEALTH)
        await eventually(lambda: used_mib(view) == 700)


async def test_a_new_cluster_is_read_by_many_nodes_at_once_not_by_each_card() -> None:
    reader, view, follower = await loaded()
    nodes = [f"node-{number}" for number in range(250)]
    for node in nodes:
        for index in range(8):
            reader.put(f"{node}/{index}", node=node)
    reads = 0
    cards = reader.cards

    async def counted(names: Any = None) -> list[Any]:
        nonlocal reads
        reads += 1
        return await cards(names)

    reader.cards = counted  # type: ignore[method-assign]  # counts
    async with following(follower):
        for node in nodes:
            for index in range(8):
                about = {**HEALTH, "node": node, "uuid": f"{node}/{index}"}
                await relayed(follower, "device.recovered", about)
        await eventually(lambda: len(view.cluster.nodes) == 251)

    assert reads == 3


async def test_health_that_cannot_be_read_now_is_read_with_the_next_refresh() -> None:
    reader, view, follower = await loaded()
    asked = asyncio.Event()

    class Away(Reader):
        async def cards(self, nodes: object = None) -> list[Any]:
            asked.set()
            raise Unavailable("Postgres is away")

    view._reader = Away()
    async with following(follower):
        await relayed(follower, "device.health", HEALTH)
        async with asyncio.timeout(DEADLINE_S):
            await asked.wait()
    view._reader = reader
    reader.use("a", 900)

    assert await view.refresh()
    assert used_mib(view) == 900


async def test_a_malformed_event_names_what_is_wrong() -> None:
    _, _, follower = await loaded()

    with pytest.raises(InvalidRequest, match="allocation_id"):
        await follower.handle(message("allocation.reserved", {"version": 1}))


@pytest.mark.parametrize("ending", sorted(set(AllocationState) - LIVE_STATES))
def test_every_end_of_a_grant_is_followed_for_it_gives_cards_back(ending: AllocationState) -> None:
    assert f"hami.events.v1.allocation.{ending}" in SUBJECTS
