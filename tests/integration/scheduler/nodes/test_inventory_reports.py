"""Which reports of nodes count, and which of their cards: clocks, restarts, duplicates."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.ports.ledger import AgentInventory
from hamicommon import events
from hamicommon.bus.inventories import inventory_of
from hamicommon.domain.ids import NodeName
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from tests.integration.scheduler.world import Replica, World, inventory_device
from tests.waiting import eventually


class AnyPayload(BaseModel, extra="allow"):
    """A payload of an agent of another kind."""


async def has_cards(world: World, node: str, *uuids: str) -> None:
    async def is_known() -> bool:
        rows = await world.database.fetch(
            "SELECT uuid FROM devices WHERE node = $1 AND present ORDER BY uuid", node
        )
        return [row["uuid"] for row in rows] == sorted(uuids)

    await eventually(is_known, f"{node} to have {uuids}")


async def card_refusals(world: World) -> list[tuple[str, str]]:
    rows = await world.database.fetch(
        "SELECT subject, detail FROM drift_journal WHERE \"class\" = 'card-refused' ORDER BY id"
    )
    return [(row["subject"], row["detail"]) for row in rows]


async def sample(replica: Replica, name: str, **labels: str) -> float | None:
    """A sample of the replica's metrics; None where there is none."""
    text = (await replica.http.get("/metrics")).text
    found = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return next((s.value for s in found if (s.name, s.labels) == (name, labels)), None)


@pytest.mark.parametrize("hours", [8, -8])
async def test_a_restarted_agent_counts_whatever_clock_the_one_before_had(
    world: World, hours: int
) -> None:
    replica, _ = await world.replica_with_card()
    await world.report("n1", inventory_device("A", 0), clock_ahead=timedelta(hours=hours))
    await has_cards(world, "n1", "A")
    skew_s = await sample(replica, "hami_scheduler_node_clock_skew_seconds", node="n1")
    assert skew_s is not None
    assert abs(skew_s - hours * 3600) < 600

    await world.report("n1", inventory_device("B", 0), agent_id="restarted")

    await has_cards(world, "n1", "B")
    assert await sample(replica, "hami_scheduler_node_clock_skew_seconds", node="n1") is None


async def test_a_late_report_of_the_agent_before_is_ignored(world: World) -> None:
    bus_s = datetime.now(UTC) - timedelta(minutes=5)
    store = PostgresInventory(world.database, on_commit=lambda: None)

    async def is_accepted(agent_id: str, card: str, after_s: float) -> bool:
        report = events.Inventory(
            node="n9",
            agent_id=agent_id,
            sequence=1,
            observed_at=datetime.now(UTC) - timedelta(hours=after_s),
            devices=(inventory_device(card, 0),),
        )
        at = bus_s + timedelta(seconds=after_s)
        inventory = inventory_of(report, received_at=at)
        recorded = await store.record_all(
            [AgentInventory(inventory=inventory, agent_id=agent_id, sequence=1)]
        )
        return recorded != [None]

    assert await is_accepted("first", "A", 10)
    assert await is_accepted("second", "B", 20)
    assert not await is_accepted("first", "A", 10)
    assert await is_accepted("third", "C", 30)
    await has_cards(world, "n9", "C")


async def test_a_date_in_the_future_is_none(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    await world.database.fetch(
        "UPDATE nodes SET agent_id = 'ahead', inventory_at = now() + interval '8 hours'"
        " WHERE name = 'n1'"
    )

    await world.report("n1", inventory_device("B", 0), agent_id="restarted")

    await has_cards(world, "n1", "B")


async def test_a_duplicate_takes_no_healthy_card_with_it(world: World) -> None:
    replica, _ = await world.replica_with_card()
    await world.add_node("n2")

    await world.report(
        "n2",
        inventory_device("GPU-n2-0", 0),
        inventory_device("GPU-n1-0", 1),
        inventory_device("GPU-n2-0", 2),
        inventory_device("NEW", 3),
    )

    await has_cards(world, "n2", "GPU-n2-0", "NEW")
    await has_cards(world, "n1", "GPU-n1-0")

    async def has_both_refusals() -> bool:
        return len(await card_refusals(world)) == 2

    await eventually(has_both_refusals, "both refusals to be journalled")
    assert await card_refusals(world) == [
        ("n2/GPU-n1-0", "node n1 has it: uuids must be unique in the cluster"),
        ("n2/GPU-n2-0", "reported more than once: the first report of it counts"),
    ]
    assert await sample(replica, "hami_ledger_drift_items", **{"class": "card-refused"}) == 2


async def test_a_refused_card_is_journalled_once_and_served_when_it_can_be(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    await world.add_node("n2")
    both = (inventory_device("GPU-n2-0", 0), inventory_device("GPU-n1-0", 1))
    await world.report("n2", *both)
    await world.report("n2", *both, inventory_device("NEW", 2))
    await has_cards(world, "n2", "GPU-n2-0", "NEW")

    async def count_refusals() -> int:
        return len(await card_refusals(world))

    assert await eventually(count_refusals, "the refusal to be journalled") == 1
    await world.report("n1", inventory_device("OTHER", 0))
    await has_cards(world, "n1", "OTHER")
    await world.report("n2", *both, inventory_device("NEW", 2), inventory_device("NEWER", 3))

    await has_cards(world, "n2", "GPU-n1-0", "GPU-n2-0", "NEW", "NEWER")


async def test_a_card_that_cannot_be_read_takes_no_other_with_it(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    good, bad = inventory_device("GOOD", 0).model_dump(), inventory_device("BAD", 1).model_dump()
    report: dict[str, Any] = {
        "version": 1,
        "node": "n1",
        "agent_id": world.agent_id,
        "sequence": 1000,
        "observed_at": "2026-11-23T10:00:00Z",
        "devices": [{**bad, "memory_mib": -1}, good, {**bad, "slots": "many"}],
    }
    await world.bus.publish(
        events.inventory_subject("n1"), AnyPayload(**report), message_id=uuid.uuid4().hex
    )

    await has_cards(world, "n1", "GOOD")

    async def has_both_refusals() -> bool:
        return [subject for subject, _ in await card_refusals(world)] == [
            "n1/card 0 of the report: Input should be greater than or equal to 0",
            "n1/card 2 of the report: Input should be a valid integer, unable to parse string as"
            " an integer",
        ]

    await eventually(has_both_refusals, "both to be journalled")


def agent_inventory(node: str, *cards: events.InventoryDevice, sequence: int = 1) -> AgentInventory:
    report = events.Inventory(
        node=node,
        agent_id="a",
        sequence=sequence,
        observed_at=datetime.now(UTC),
        devices=cards,
    )
    inventory = inventory_of(report, received_at=datetime.now(UTC))
    return AgentInventory(inventory=inventory, agent_id="a", sequence=sequence)


async def test_reports_that_came_together_are_judged_each_by_itself(world: World) -> None:
    store = PostgresInventory(world.database, on_commit=lambda: None)
    await store.record_all([agent_inventory("n1", inventory_device("A", 0), sequence=5)])

    late, new, taken = await store.record_all(
        [
            agent_inventory("n1", inventory_device("B", 0), sequence=4),
            agent_inventory("n3", inventory_device("C", 0)),
            agent_inventory("n2", inventory_device("A", 0), inventory_device("D", 1)),
        ]
    )

    assert late is None
    assert new is not None
    assert new.changed
    assert taken is not None
    assert taken.refused == {"A": "node n1 has it: uuids must be unique in the cluster"}
    for node, card in (("n1", "A"), ("n2", "D"), ("n3", "C")):
        await has_cards(world, node, card)


async def test_a_heartbeat_locks_no_card_and_writes_its_node_alone(world: World) -> None:
    store = PostgresInventory(world.database, on_commit=lambda: None)
    cards = [inventory_device(f"A{number}", number) for number in range(8)]
    await store.record_all([agent_inventory("n1", *cards)])
    rows = "SELECT uuid, xmin::text, xmax::text FROM devices ORDER BY uuid"
    before = await world.database.fetch(rows)

    [recorded] = await store.record_all([agent_inventory("n1", *cards, sequence=2)])

    assert recorded is not None
    assert not recorded.changed
    assert await world.database.fetch(rows) == before
    assert await store.agent_marks() == {"n1": ("a", 2)}


async def test_all_health_changes_of_a_report_are_kept_and_announced(world: World) -> None:
    store = PostgresInventory(world.database, on_commit=lambda: None)
    cards = [inventory_device(f"A{number}", number) for number in range(3)]
    sick = inventory_device("A1", 1).model_copy(
        update={"healthy": False, "health_reason": "XID 79"}
    )
    await store.record_all([agent_inventory("n1", *cards)])

    [recorded] = await store.record_all([agent_inventory("n1", cards[0], sick, sequence=2)])

    assert recorded is not None
    assert [(each.uuid, each.healthy, each.reason) for each in recorded.health] == [
        ("A1", False, "XID 79"),
        ("A2", False, "no longer reported by its node"),
    ]
    rows = await world.database.fetch(
        "SELECT device_uuid, healthy, reason FROM device_health_events ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        *((f"A{number}", True, "") for number in range(3)),
        ("A1", False, "XID 79"),
        ("A2", False, "no longer reported by its node"),
    ]
    announced = await world.database.fetch(
        "SELECT subject, payload FROM outbox WHERE subject LIKE 'hami.events.v1.device.%'"
        " ORDER BY id"
    )
    assert [(row["subject"].rpartition(".")[2], row["payload"]["uuid"]) for row in announced] == [
        *(("recovered", f"A{number}") for number in range(3)),
        ("failed", "A1"),
        ("failed", "A2"),
    ]
    assert [row["payload"]["event_id"] for row in announced[3:]] == [
        each.event_id for each in recorded.health
    ]


async def test_a_number_that_is_forgotten_lets_the_agents_next_report_in(world: World) -> None:
    store = PostgresInventory(world.database, on_commit=lambda: None)
    await store.record_all([agent_inventory("n1", inventory_device("A", 0), sequence=2**53 - 1)])
    assert await store.record_all(
        [agent_inventory("n1", inventory_device("A", 0), sequence=7)]
    ) == [None]

    assert await store.forget_number(NodeName("n1")) == 2**53 - 1
    assert await store.forget_number(NodeName("unknown")) is None

    [taken] = await store.record_all([agent_inventory("n1", inventory_device("A", 0), sequence=8)])
    assert taken is not None


async def test_what_a_row_has_wrong_is_written_again_by_the_next_report(world: World) -> None:
    """Profiles that are none can't be read, and a sum of versions is beyond no type."""
    store = PostgresInventory(world.database, on_commit=lambda: None)
    cards = [inventory_device(f"A{number}", number) for number in range(3)]
    await store.record_all([agent_inventory("n1", *cards)])
    garbage = (
        "mig_profiles = '[1, {\"name\": 2}]'",
        "version = 8796093022206, type = 'garbage'",
        "slots = 0, memory_mib = 0",
    )
    for card, change in zip(cards, garbage, strict=True):
        await world.database.fetch(f"UPDATE devices SET {change} WHERE uuid = '{card.uuid}'")

    assert len(await store.cards()) == 3
    assert (await store.tally())[0] == 3
    await store.record_all([agent_inventory("n1", *cards, sequence=2)])

    found = {card.usage.device.uuid: card.usage.device for card in await store.cards()}
    assert found["A0"].mig_profiles == ()
    assert (found["A2"].slots, found["A2"].memory_mib) == (cards[2].slots, cards[2].memory_mib)


async def test_a_row_on_another_node_comes_back_though_pods_hold_it(world: World) -> None:
    store = PostgresInventory(world.database, on_commit=lambda: None)
    await store.record_all([agent_inventory("n1", inventory_device("A", 0)), agent_inventory("n2")])
    await world.database.fetch(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state) VALUES"
        " ('00000000-0000-4000-8000-000000000001', 'u', 'ns', 'p', 1, 'n1', 'allocated')"
    )
    await world.database.fetch(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent) VALUES"
        " ('00000000-0000-4000-8000-000000000001', 0, 0, 'c', 'app', 'A', 'NVIDIA', 10, 0)"
    )
    await world.database.fetch("UPDATE devices SET node = 'n2', used_slots = 1 WHERE uuid = 'A'")

    [refused] = await store.record_all(
        [agent_inventory("n1", inventory_device("A", 0), sequence=2)]
    )
    assert refused is not None
    assert set(refused.refused) == {"A"}
    await store.record_all([agent_inventory("n2", sequence=2)])
    await store.record_all([agent_inventory("n1", inventory_device("A", 0), sequence=3)])

    await has_cards(world, "n1", "A")
