"""The webhook's view of the cluster from the bus, and when it is discarded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hami_webhook.cluster_feed import STALE_AFTER, ClusterFollower
from hami_webhook.room import RoomThread
from hamicommon import events
from hamicommon.admission.quota import QuotaUse
from hamicommon.bus.client import Message
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.registry import Vendors
from pydantic import BaseModel

from tests.unit.clock import Clock

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)
MEM = "nvidia.com/gpumem"


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def follower(clock: Clock) -> Iterator[ClusterFollower]:
    thread = RoomThread()
    yield ClusterFollower(Vendors.from_config(DeviceConfig()), clock, thread)
    thread.close()


def message(subject: str, payload: BaseModel | bytes) -> Message:
    data = payload if isinstance(payload, bytes) else payload.model_dump_json().encode()
    return Message(subject=subject, data=data, stream_sequence=1, deliveries=1, received_at=BEFORE)


def cluster(
    nodes: int = 0,
    *,
    at: datetime = NOW,
    foreign: tuple[str, ...] = (),
    gone: tuple[str, ...] = (),
) -> Message:
    numbers = events.ClusterNumbers(
        taken_at=at, agent_nodes=nodes, foreign_vendors=foreign, gone_nodes=gone
    )
    return message(events.LEDGER_CLUSTER_SUBJECT, numbers)


def quotas(used: int | None, *, at: datetime = NOW) -> Message:
    items = () if used is None else (events.QuotaNumbers(resource=MEM, limit=100, used=used),)
    numbers = events.NamespaceNumbers(namespace="team", taken_at=at, quotas=items)
    return message(events.ledger_quota_subject("team"), numbers)


def inventory(node: str, *, sequence: int = 1, cards: int = 1) -> Message:
    devices = tuple(
        events.InventoryDevice(
            uuid=f"GPU-{node}-{index}",
            index=index,
            vendor="NVIDIA",
            type="NVIDIA A100",
            slots=10,
            memory_mib=81920,
            core_percent=100,
        )
        for index in range(cards)
    )
    inventory = events.Inventory(
        node=node, agent_id="a", sequence=sequence, observed_at=NOW, devices=devices
    )
    return message(events.inventory_subject(node), inventory)


async def test_nothing_is_known_before_the_scheduler_spoke(follower: ClusterFollower) -> None:
    await follower.take_inventory(inventory("a"))
    await follower.take_numbers(quotas(5))

    known = follower.knowledge()

    assert (known.cards, known.quotas) == (None, None)
    assert known.cards_unknown == "the scheduler has not published its statistics"


async def test_cards_are_known_once_every_node_with_an_agent_has_reported(
    follower: ClusterFollower,
) -> None:
    await follower.take_numbers(cluster(2))
    await follower.take_inventory(inventory("a"))
    assert follower.knowledge().cards is None
    assert follower.knowledge().cards_unknown == "1 of 2 nodes have reported their cards"

    await follower.take_inventory(inventory("b"))
    assert follower.knowledge().cards is not None


async def test_what_is_stale_counts_as_unknown(follower: ClusterFollower, clock: Clock) -> None:
    await follower.take_numbers(cluster())
    clock.now += STALE_AFTER
    assert follower.knowledge().quotas is not None

    clock.now += timedelta(seconds=1)
    known = follower.knowledge()
    assert (known.cards, known.quotas) == (None, None)
    assert known.quotas_unknown == "the scheduler's numbers are 61 s old"


async def test_the_newest_numbers_of_a_namespace_count_in_whatever_order_they_come(
    follower: ClusterFollower,
) -> None:
    await follower.take_numbers(cluster())
    await follower.take_numbers(quotas(7, at=NOW + timedelta(seconds=2)))
    await follower.take_numbers(quotas(5, at=NOW))

    assert follower.knowledge().quotas_of("team") == {MEM: QuotaUse(limit=100, used=7)}
    await follower.take_numbers(quotas(None, at=NOW + timedelta(seconds=3)))
    assert follower.knowledge().quotas_of("team") == {}


async def test_an_older_inventory_changes_nothing(follower: ClusterFollower) -> None:
    await follower.take_numbers(cluster(1))
    await follower.take_inventory(inventory("a", sequence=2, cards=4))
    await follower.take_inventory(inventory("a", sequence=1, cards=1))

    cards = follower.knowledge().cards
    assert cards is not None
    assert (cards.nodes, cards.cards) == (1, 4)


@pytest.mark.parametrize(
    "bad",
    [
        message(events.inventory_subject("a"), b"{"),
        message(events.inventory_subject("b"), inventory("a").data),
    ],
    ids=["no inventory", "another node's"],
)
async def test_what_can_not_be_believed_is_passed_over(
    follower: ClusterFollower, bad: Message, caplog: pytest.LogCaptureFixture
) -> None:
    await follower.take_numbers(cluster(1))
    await follower.take_inventory(bad)

    assert follower.knowledge().cards is None
    assert "Skipped a message that can't be read" in caplog.text


async def test_vendors_on_nodes_without_our_agent_are_counted(follower: ClusterFollower) -> None:
    await follower.take_numbers(cluster(foreign=("DCU",)))

    assert follower.knowledge().foreign_vendors == {"DCU"}


async def test_deleted_nodes_stand_for_no_live_one_that_has_not_reported(
    follower: ClusterFollower,
) -> None:
    await follower.take_inventory(inventory("deleted"))
    await follower.take_numbers(cluster(1, gone=("deleted",)))
    assert follower.knowledge().cards_unknown == "0 of 1 nodes have reported their cards"

    await follower.take_inventory(inventory("deleted"))
    assert follower.knowledge().cards is None

    await follower.take_inventory(inventory("live", cards=2))
    cards = follower.knowledge().cards
    assert cards is not None
    assert (cards.nodes, cards.cards) == (1, 2)


async def test_a_node_that_is_made_again_counts_again(follower: ClusterFollower) -> None:
    await follower.take_inventory(inventory("a"))
    await follower.take_numbers(cluster(gone=("a",)))

    newer = replace(inventory("a"), received_at=NOW + timedelta(seconds=1))
    await follower.take_inventory(newer)

    cards = follower.knowledge().cards
    assert cards is not None
    assert cards.nodes == 1


async def test_namespaces_without_quotas_are_forgotten(
    follower: ClusterFollower, clock: Clock
) -> None:
    await follower.take_numbers(quotas(5))
    await follower.take_numbers(quotas(None, at=NOW + timedelta(seconds=2)))
    await follower.take_numbers(quotas(5, at=NOW + timedelta(seconds=1)))
    await follower.take_numbers(cluster())
    assert follower.knowledge().quotas_of("team") == {}

    clock.now += 2 * STALE_AFTER
    await follower.take_numbers(cluster(at=clock.now))

    assert follower._quotas == follower._limits == follower._ended == {}
