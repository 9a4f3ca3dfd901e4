"""Publishing of a node's cards, on the bus and on the Node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hami_node_agent.devices.topology import CardLinks, Meeting
from hami_node_agent.inventory import publisher
from hami_node_agent.inventory.publisher import (
    REGISTER_ANNOTATION,
    InventoryPublisher,
    inventory_device,
    keep_annotation,
)
from hami_node_agent.inventory.tracker import CardTracker
from hamicommon import events
from hamicommon.bus.inventories import inventory_of
from hamicommon.domain.devices import MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable
from hamicommon.k8s.annotations import AGENT
from hamicommon.k8s.node_register import decode_register
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.shutdown import end
from pydantic import BaseModel

from tests.unit.node_agent.builders import a_card
from tests.unit.node_agent.inventory.driver import Driver, facts, tracker_of
from tests.waiting import PATIENCE_S

SLICED = replace(
    a_card(),
    mode="mig",
    mig_profiles=(
        MigProfile(
            name="1g.5gb",
            memory_mib=4864,
            core_percent=15,
            slice_count=1,
            placements=((0, 1), (1, 1)),
        ),
    ),
    info={"NetworkID": 3, "zone": ["a", 1]},
    healthy=False,
    health_reason="XID 79",
)


def test_everything_that_the_engine_judges_a_card_by_reaches_the_scheduler() -> None:
    """MIG profiles and the vendor's own facts too."""
    sent = events.Inventory(
        node="n",
        agent_id="a",
        sequence=1,
        observed_at=datetime(2026, 5, 1, tzinfo=UTC),
        devices=(inventory_device(SLICED), inventory_device(a_card("GPU-b"))),
    )

    read = events.Inventory.model_validate_json(sent.model_dump_json())
    heard = inventory_of(read, received_at=sent.observed_at)

    assert heard.devices == (SLICED, a_card("GPU-b"))


UUIDS = [GpuUuid(f"GPU-{index}") for index in range(3)]
LINKS = tuple(
    CardLinks(
        uuid=one,
        meetings={other: Meeting.SAME_CPU for other in UUIDS if other != one},
        nvlinks={other: 2 for other in UUIDS[:2] if other != one and one != UUIDS[2]},
    )
    for one in UUIDS
)


class Bus:
    """Bus that records published messages."""

    connected = True

    def __init__(self) -> None:
        self.inventories: list[events.Inventory] = []
        self.published = asyncio.Event()

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        del subject, message_id
        assert isinstance(payload, events.Inventory)
        self.inventories.append(payload)
        self.published.set()


class Node:
    """A Node whose patches fail `failures` times."""

    def __init__(self, failures: int) -> None:
        self.written: dict[str, str] = {}
        self.asked = 0
        self.patches = 0
        self._failures = failures
        self.done = asyncio.Event()

    async def annotations(self) -> Mapping[str, str]:
        self.asked += 1
        return self.written

    async def annotate(self, annotations: Mapping[str, str]) -> None:
        self.patches += 1
        if self.patches <= self._failures:
            raise Unavailable("the API server is away")
        self.written |= annotations
        self.done.set()


async def discover_cards() -> CardTracker:
    """Cards that the driver lists from the last to the first."""
    driver = Driver()
    driver.listed = tuple(facts(UUIDS[index], index) for index in (2, 0, 1))
    driver.linked = LINKS
    return await tracker_of(driver, xid_quiet_s=60)


async def written_by(failures: int) -> dict[str, str]:
    node, cards = Node(failures), await discover_cards()
    keeping = asyncio.create_task(keep_annotation(cards, node))
    async with asyncio.timeout(PATIENCE_S):
        await node.done.wait()
    keeping.cancel()
    return node.written


async def test_cards_are_registered_in_the_order_of_their_index() -> None:
    """TRAP-5: HAMi's order changes with every round, and with it the Node."""
    written = await written_by(failures=0)

    assert [card.uuid for card in decode_register(written[REGISTER_ANNOTATION])] == [
        "GPU-0",
        "GPU-1",
        "GPU-2",
    ]
    assert written[AGENT] == "hami-node-agent"


async def test_a_register_annotation_that_was_not_written_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TRAP-6: HAMi takes it for written before it is."""
    monkeypatch.setattr(publisher, "RETRY_S", 0.001)

    assert REGISTER_ANNOTATION in await written_by(failures=2)


class Waits:
    """Stands for `Signal.wait`: notes the pauses, and ends the loop after some of them."""

    def __init__(self, rounds: int) -> None:
        self.pauses_s: list[float] = []
        self._rounds = rounds

    async def __call__(self, seen: int, timeout_s: float | None = None) -> int:
        assert timeout_s is not None
        self.pauses_s.append(timeout_s)
        if len(self.pauses_s) == self._rounds:
            raise asyncio.CancelledError
        return seen


async def test_a_node_that_cannot_be_annotated_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every node of a cluster meets an API server that is ill."""
    cards, waits = await discover_cards(), Waits(8)
    monkeypatch.setattr(cards.changed, "wait", waits)
    with pytest.raises(asyncio.CancelledError):
        await keep_annotation(cards, Node(failures=100))

    assert waits.pauses_s[0] <= publisher.RETRY_S
    assert all(pause_s >= publisher.RECHECK_S / 2 for pause_s in waits.pauses_s[-3:])
    assert max(waits.pauses_s) <= publisher.RECHECK_S


async def test_an_inventory_that_the_bus_does_not_take_is_sent_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Away(Bus):
        async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
            raise Unavailable("NATS is not connected")

    cards, waits = await discover_cards(), Waits(8)
    monkeypatch.setattr(cards.changed, "wait", waits)
    loop = InventoryPublisher(cards, Away(), node="n", agent_id="a", heartbeat_s=10)
    with pytest.raises(asyncio.CancelledError):
        await loop.run()

    assert waits.pauses_s[0] <= publisher.RETRY_S
    assert all(5 <= pause_s <= 10 for pause_s in waits.pauses_s[-3:])


async def test_pair_scores_are_on_the_node_in_the_order_of_the_cards() -> None:
    written = await written_by(failures=0)

    assert written["hami.io/node-nvidia-score"] == (
        '[{"uuid":"GPU-0","score":{"GPU-1":220,"GPU-2":20}},'
        '{"uuid":"GPU-1","score":{"GPU-0":220,"GPU-2":20}},'
        '{"uuid":"GPU-2","score":{"GPU-0":20,"GPU-1":20}}]'
    )


async def test_the_inventory_carries_the_pair_scores() -> None:
    bus = Bus()
    publishing = asyncio.create_task(
        InventoryPublisher(
            await discover_cards(), bus, node="n", agent_id="a", heartbeat_s=60
        ).run()
    )
    async with asyncio.timeout(PATIENCE_S):
        await bus.published.wait()
    publishing.cancel()

    [publisher] = bus.inventories
    assert inventory_of(publisher, received_at=publisher.observed_at).pair_scores[UUIDS[0]] == {
        UUIDS[1]: 220,
        UUIDS[2]: 20,
    }


async def test_an_annotation_that_somebody_broke_is_repaired_and_nothing_is_written_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "RECHECK_S", 0.001)
    node, cards = Node(0), await discover_cards()
    keeping = asyncio.create_task(keep_annotation(cards, node))
    async with asyncio.timeout(PATIENCE_S):
        await node.done.wait()
        first = dict(node.written)
        node.written[REGISTER_ANNOTATION] = "broken"
        node.done.clear()
        await node.done.wait()
        asked = node.asked
        while node.asked < asked + 3:
            await asyncio.sleep(0)
    keeping.cancel()

    assert node.written == first
    assert node.patches == 2


async def test_cards_around_a_poisonous_one_are_published_on_the_bus_and_on_the_node() -> None:
    cards, bus, node, bulkhead = await discover_cards(), Bus(), Node(0), Bulkhead()
    odd = replace(cards._devices[UUIDS[1]], memory_mib=cast(Any, object()))
    cards._devices[UUIDS[1]] = odd
    publishing = InventoryPublisher(
        cards, bus, node="n", agent_id="a", heartbeat_s=60, bulkhead=bulkhead
    )
    loops = [
        asyncio.create_task(publishing.run()),
        asyncio.create_task(keep_annotation(cards, node, bulkhead=bulkhead)),
    ]
    for event in (bus.published, node.done):
        waiting = asyncio.create_task(event.wait())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([*loops, waiting], return_when=asyncio.FIRST_COMPLETED)
        await end([waiting])
        assert not any(loop.done() for loop in loops)
    await end(loops)

    [inventory] = bus.inventories
    assert [card.uuid for card in inventory.devices] == [UUIDS[0], UUIDS[2]]
    written = decode_register(node.written[REGISTER_ANNOTATION])
    assert [card.uuid for card in written] == [UUIDS[0], UUIDS[2]]
    assert bulkhead.failures == {"inventory": 1, "annotation": 1}
