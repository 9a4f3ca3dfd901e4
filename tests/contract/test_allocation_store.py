"""What every AllocationStore promises: the fakes, the one of tests/simulation too, and Postgres."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.adapters import postgres_allocations
from hami_scheduler.adapters.postgres_allocations import PostgresAllocationStore
from hami_scheduler.adapters.postgres_inventory import PostgresInventory
from hami_scheduler.ports import AllocationStore, LedgerReader
from hamicommon.db.database import Database, open_database
from hamicommon.db.ledger import Draft, Entry, Move, Step
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Origin,
    Placement,
)
from hamicommon.domain.devices import DeviceUsage, GpuDevice, NodeInventory
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_rules import STANDARD_ORDER, VendorRules
from hamicommon.settings import PostgresSettings
from hamicommon.testing.ledger import FakeLedger

from tests.simulation.ledger import SimLedger

S = AllocationState
NODE, OTHER = NodeName("node-a"), NodeName("node-b")
MEMORY = "nvidia.com/gpumem"


def card(name: str, **changes: Any) -> GpuDevice:
    device = GpuDevice(
        uuid=GpuUuid(f"GPU-{name}"),
        index=0,
        vendor="NVIDIA",
        type="NVIDIA A100",
        slots=3,
        memory_mib=1000,
        core_percent=100,
    )
    return replace(device, **changes)


def container(
    *shares: tuple[str, int, int], index: int = 0, name: str = "main", role: Any = "app"
) -> ContainerGrant:
    return ContainerGrant(
        index=index,
        name=name,
        role=role,
        shares=tuple(
            DeviceShare(
                uuid=GpuUuid(f"GPU-{uuid}"), vendor="NVIDIA", memory_mib=memory, core_percent=core
            )
            for uuid, memory, core in shares
        ),
    )


def draft(pod: str, *containers: ContainerGrant, node: NodeName = NODE, **changes: Any) -> Draft:
    made = Draft(
        allocation_id=AllocationId(str(uuid.uuid4())),
        pod_uid=PodUid(pod),
        namespace="team",
        pod_name=f"pod-{pod}",
        placement=Placement(node=node, containers=containers),
        lease_s=60,
    )
    return replace(made, **changes)


def quota_of(containers: Any) -> dict[str, int]:
    return {MEMORY: sum(s.memory_mib for c in containers for s in c.shares)}


LOOSE = tuple(
    rule
    for rule in STANDARD_ORDER
    if rule not in (Rule.CORDONED, Rule.EXCLUSIVE, Rule.CORES_EXHAUSTED)
)
RULES = {"loose": VendorRules(order=LOOSE), "exact": VendorRules(exact=True)}


@dataclass
class Harness:
    """A store and what the cases need beside it."""

    store: AllocationStore
    ledger: LedgerReader
    fake: FakeLedger | None = None
    database: Database | None = None
    inventory: PostgresInventory | SimLedger | None = None
    _cards: dict[NodeName, list[GpuDevice]] = field(default_factory=dict)
    _sequence: int = 0

    async def add(self, *devices: GpuDevice, node: NodeName = NODE) -> None:
        known = {d.uuid: d for d in self._cards.get(node, [])} | {d.uuid: d for d in devices}
        self._cards[node] = list(known.values())
        self._sequence += 1
        if self.fake is not None:
            for device in devices:
                self.fake.add_card(node, device)
            return
        assert self.inventory is not None
        inventory = NodeInventory(
            node=node, devices=tuple(known.values()), observed_at=datetime.now(UTC)
        )
        events = await self.inventory.record(inventory, agent_id="a", sequence=self._sequence)
        assert events is not None

    async def usage(self, name: str) -> DeviceUsage:
        if self.fake is not None:
            return self.fake.usage(GpuUuid(f"GPU-{name}"))
        assert self.inventory is not None
        cards = await self.inventory.cards()
        return next(c.usage for c in cards if c.usage.device.uuid == f"GPU-{name}")

    async def cordon(self, name: str) -> None:
        uuid = GpuUuid(f"GPU-{name}")
        if self.fake is not None:
            self.fake.add_card(NODE, self.fake.usage(uuid).device, cordoned=True)
            return
        assert self.inventory is not None
        assert await self.inventory.set_cordoned(NODE, frozenset({uuid}))

    async def version(self, name: str) -> int:
        uuid = GpuUuid(f"GPU-{name}")
        if self.fake is not None:
            return self.fake.version(uuid)
        assert self.inventory is not None
        return (await self.inventory.versions())[uuid][1]

    async def used(self, name: str) -> tuple[int, int, int]:
        usage = await self.usage(name)
        return usage.used_slots, usage.used_memory_mib, usage.used_core_percent

    async def history(self, pod: str) -> list[tuple[int, str | None, str]]:
        memory = self.fake or self.inventory
        if isinstance(memory, FakeLedger):
            events = memory.history(PodUid(pod))
            return [(e.sequence, e.previous_state, e.state) for e in events]
        assert self.database is not None
        rows = await self.database.fetch(
            "SELECT sequence, previous_state, state FROM allocation_events WHERE pod_uid = $1"
            " ORDER BY id",
            pod,
        )
        return [tuple(row) for row in rows]

    async def limit(self, namespace: str, amount: int) -> None:
        if isinstance(self.inventory, SimLedger):
            await self.inventory.set_limits(namespace, {MEMORY: amount})
            return
        if self.fake is not None:
            self.fake.set_quota(namespace, MEMORY, amount)
            return
        assert self.database is not None
        await self.database.fetch(
            "INSERT INTO quotas (namespace, resource, limit_amount) VALUES ($1, $2, $3)",
            namespace,
            MEMORY,
            amount,
        )

    async def advance(self, pod: str, target: S, *sources: S, **changes: Any) -> Any:
        live = await self.store.live_of(PodUid(pod))
        assert live is not None
        step = Step(
            allocation_id=live.id, sources=frozenset(sources or {live.state}), target=target
        )
        return await self.store.advance(replace(step, **changes))


@pytest.fixture(
    params=["fake", "simulated", pytest.param("postgres", marks=pytest.mark.integration)]
)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "fake":
        fake = FakeLedger(quota_of=quota_of, rules=RULES)
        yield Harness(store=fake, ledger=fake, fake=fake)
        return
    if request.param == "simulated":
        simulated = SimLedger(
            on_commit=lambda _changes: None,
            quota_of=quota_of,
            rules=RULES,
            clock=lambda: datetime.now(UTC),
        )
        yield Harness(store=simulated, ledger=simulated, inventory=simulated)
        return
    dsn = request.getfixturevalue("postgres_dsn")
    async with open_database(PostgresSettings(dsn=dsn), application="test") as database:
        store = PostgresAllocationStore(
            database, quota_of=quota_of, rules=RULES, on_commit=lambda: None
        )
        inventory = PostgresInventory(database, on_commit=lambda: None)
        yield Harness(store=store, ledger=store, database=database, inventory=inventory)


async def test_a_reservation_takes_its_slices_and_starts_the_history(harness: Harness) -> None:
    await harness.add(card("0"))

    change = await harness.store.reserve(draft("p", container(("0", 400, 30))))

    assert change.allocation.state is S.RESERVED
    assert (change.allocation.attempt, change.sequence) == (1, 1)
    assert change.allocation.deadline is not None
    assert await harness.used("0") == (1, 400, 30)
    [counters] = change.counters
    assert (counters.used_slots, counters.used_memory_mib, counters.used_core_percent) == (
        1,
        400,
        30,
    )
    assert await harness.history("p") == [(1, None, "reserved")]
    assert await harness.store.live_of(PodUid("p")) == change.allocation


async def test_what_is_read_back_is_what_was_reserved(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    containers = (
        container(("0", 100, 10), name="setup", role="init"),
        container(index=1, name="sidecar"),
        container(("1", 200, 20), ("0", 300, 30), index=2, name="main"),
    )

    change = await harness.store.reserve(draft("p", *containers, traceparent="00-1-2-01"))

    read = await harness.store.get(change.allocation.id)
    assert read is not None
    assert read.containers == containers
    assert read.traceparent == "00-1-2-01"
    assert await harness.used("0") == (1, 300, 30)
    assert await harness.used("1") == (1, 200, 20)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((700, 10), (301, 10), id="memory"),
        pytest.param((100, 60), (100, 41), id="cores"),
        pytest.param((100, 0), (100, 100), id="exclusive-beside-another"),
        pytest.param((100, 100), (100, 0), id="coreless-on-used-up-cores"),
    ],
)
async def test_a_card_that_can_not_hold_it_refuses_by_name(
    harness: Harness, first: tuple[int, int], second: tuple[int, int]
) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", *first))))
    before = await harness.used("0")

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.reserve(draft("q", container(("0", *second))))

    assert caught.value.subject == "GPU-0"
    assert await harness.used("0") == before
    assert await harness.store.live_of(PodUid("q")) is None
    assert await harness.history("q") == []


async def test_slots_are_as_limited_as_memory(harness: Harness) -> None:
    await harness.add(card("0", slots=1))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("q", container(("0", 1, 1))))


async def test_policy_mutex_wants_an_empty_card(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("q", container(("0", 1, 1)), mutex=True))


@pytest.mark.parametrize("change", [{"healthy": False}], ids=["unhealthy"])
async def test_a_sick_card_gets_no_grant(harness: Harness, change: dict[str, Any]) -> None:
    await harness.add(card("0"))
    await harness.add(card("0", **change))

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("p", container(("0", 1, 1))))


async def test_of_two_cards_none_is_taken_when_one_refuses(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1, memory_mib=100))

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.reserve(draft("p", container(("0", 200, 1), ("1", 200, 1))))

    assert caught.value.subject == "GPU-1"
    assert await harness.used("0") == (0, 0, 0)


async def test_one_pod_has_one_live_allocation(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))

    with pytest.raises(Conflict):
        await harness.store.reserve(draft("p", container(("0", 1, 1))))

    assert await harness.used("0") == (1, 1, 1)


async def test_a_replacement_moves_everything_in_one_step(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.add(card("1"), node=OTHER)
    old = (await harness.store.reserve(draft("p", container(("0", 600, 60))))).allocation

    change = await harness.store.reserve(
        draft("p", container(("1", 600, 60)), node=OTHER, replaces=old.id)
    )

    assert change.allocation.attempt == 2
    assert await harness.used("0") == (0, 0, 0)
    assert await harness.used("1") == (1, 600, 60)
    assert await harness.history("p") == [
        (1, None, "reserved"),
        (2, "reserved", "released"),
        (3, None, "reserved"),
    ]
    assert {c.uuid for c in change.counters} == {"GPU-0", "GPU-1"}


async def test_a_replacement_may_use_what_it_gives_back(harness: Harness) -> None:
    await harness.add(card("0"))
    old = (await harness.store.reserve(draft("p", container(("0", 600, 60))))).allocation

    change = await harness.store.reserve(draft("p", container(("0", 900, 90)), replaces=old.id))

    assert await harness.used("0") == (1, 900, 90)
    [counters] = change.counters
    assert counters.used_memory_mib == 900


async def test_a_replacement_that_does_not_fit_leaves_the_old_one(harness: Harness) -> None:
    await harness.add(card("0"))
    old = (await harness.store.reserve(draft("p", container(("0", 600, 60))))).allocation

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("p", container(("0", 1001, 1)), replaces=old.id))

    assert await harness.used("0") == (1, 600, 60)
    assert await harness.store.live_of(PodUid("p")) == old


async def test_only_a_reservation_can_be_replaced(harness: Harness) -> None:
    await harness.add(card("0"))
    old = (await harness.store.reserve(draft("p", container(("0", 1, 1))))).allocation
    await harness.advance("p", S.BINDING, new_token=True)

    with pytest.raises(Conflict):
        await harness.store.reserve(draft("p", container(("0", 1, 1)), replaces=old.id))


async def test_each_binding_gets_a_higher_token(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))

    first = await harness.advance("p", S.BINDING, new_token=True, lease_s=10)
    second = await harness.advance("p", S.BINDING, new_token=True, lease_s=10)

    assert first.allocation.token < second.allocation.token
    assert second.allocation.deadline is not None


async def test_a_step_needs_the_right_state(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))

    assert await harness.advance("p", S.ALLOCATED, S.BOUND) is None
    assert await harness.history("p") == [(1, None, "reserved")]


async def test_a_step_needs_the_right_token(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))
    binding = (await harness.advance("p", S.BINDING, new_token=True)).allocation

    assert await harness.advance("p", S.FAILED, token=binding.token - 1) is None
    assert (await harness.advance("p", S.BOUND, token=binding.token)).allocation.state is S.BOUND


@pytest.mark.parametrize("end", [S.RELEASED, S.EXPIRED, S.FAILED])
async def test_every_end_gives_everything_back_once(harness: Harness, end: S) -> None:
    await harness.add(card("0"))
    allocation = (await harness.store.reserve(draft("p", container(("0", 400, 30))))).allocation

    change = await harness.advance("p", end)
    again = await harness.store.advance(
        Step(allocation_id=allocation.id, sources=frozenset({S.RESERVED}), target=end)
    )

    assert again is None
    assert [c.used_memory_mib for c in change.counters] == [0]
    assert await harness.used("0") == (0, 0, 0)
    assert await harness.store.live_of(PodUid("p")) is None
    assert (await harness.store.get(allocation.id)).state is end  # type: ignore[union-attr]


async def test_after_an_end_the_pod_may_be_reserved_again(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))
    await harness.advance("p", S.EXPIRED)

    change = await harness.store.reserve(draft("p", container(("0", 1, 1))))

    assert change.allocation.attempt == 2
    assert change.sequence == 3


async def granted(harness: Harness, pod: str, *slices: tuple[str, int, int]) -> Allocation:
    """A pod that is being bound with these slices."""
    await harness.store.reserve(draft(pod, container(*slices)))
    return (await harness.advance(pod, S.BINDING, new_token=True)).allocation


def onto(allocation: Allocation, *slices: tuple[str, int, int]) -> Move:
    assert allocation.token is not None
    return Move(
        allocation_id=allocation.id, token=allocation.token, containers=(container(*slices),)
    )


async def test_a_move_exchanges_the_cards(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    bound = await granted(harness, "p", ("0", 400, 30))

    [change] = await harness.store.move([onto(bound, ("1", 400, 30))]) or ()

    assert change.allocation.containers == (container(("1", 400, 30)),)
    assert await harness.used("0") == (0, 0, 0)
    assert await harness.used("1") == (1, 400, 30)
    assert {c.uuid: c.used_slots for c in change.counters} == {"GPU-0": 0, "GPU-1": 1}
    assert await harness.store.get(bound.id) == change.allocation


async def test_a_move_without_room_changes_nothing(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1, memory_mib=100))
    bound = await granted(harness, "p", ("0", 400, 30))

    with pytest.raises(CapacityConflict):
        await harness.store.move([onto(bound, ("1", 400, 30))])

    assert await harness.used("0") == (1, 400, 30)
    assert await harness.store.get(bound.id) == bound


async def test_two_pods_change_places_on_cards_that_are_full(harness: Harness) -> None:
    await harness.add(card("0", slots=1), card("1", index=1, slots=1))
    first = await granted(harness, "p", ("0", 400, 30))
    second = await granted(harness, "q", ("1", 900, 70))
    places = [onto(first, ("1", 400, 30)), onto(second, ("0", 900, 70))]

    with pytest.raises(CapacityConflict):
        await harness.store.move(places[:1])
    changes = await harness.store.move(places)

    assert changes is not None
    assert {change.allocation.pod_uid for change in changes} == {"p", "q"}
    assert await harness.used("0") == (1, 900, 70)
    assert await harness.used("1") == (1, 400, 30)
    assert [change.sequence for change in changes] == [3, 3]


async def test_a_move_of_two_without_room_for_one_moves_neither(harness: Harness) -> None:
    await harness.add(card("0", memory_mib=500), card("1", index=1))
    first = await granted(harness, "p", ("0", 400, 30))
    second = await granted(harness, "q", ("1", 900, 70))

    with pytest.raises(CapacityConflict):
        await harness.store.move([onto(first, ("1", 400, 30)), onto(second, ("0", 900, 70))])

    assert await harness.used("0") == (1, 400, 30)
    assert await harness.used("1") == (1, 900, 70)
    assert await harness.store.get(first.id) == first


async def test_a_move_under_an_old_token_changes_nothing_for_anybody(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    first = await granted(harness, "p", ("0", 400, 30))
    second = await granted(harness, "q", ("1", 400, 30))
    await harness.advance("q", S.RELEASED)

    moves = [onto(first, ("1", 400, 30)), onto(second, ("0", 400, 30))]

    assert await harness.store.move(moves) is None
    assert await harness.used("0") == (1, 400, 30)
    assert await harness.store.get(first.id) == first


async def test_a_card_on_which_a_move_changes_nothing_may_be_sick(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1), card("2", index=2))
    bound = await granted(harness, "p", ("0", 400, 30), ("1", 400, 30))
    await harness.add(card("0", healthy=False))

    changes = await harness.store.move([onto(bound, ("0", 400, 30), ("2", 400, 30))])

    assert changes is not None
    assert await harness.used("2") == (1, 400, 30)
    with pytest.raises(CapacityConflict):
        await harness.store.move([onto(bound, ("1", 400, 30), ("0", 800, 30))])


async def test_a_quota_refuses_by_name_and_is_returned(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 500)
    slices = container(("0", 300, 10))
    await harness.store.reserve(draft("p", slices, quota=quota_of([slices])))

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.reserve(draft("q", slices, quota=quota_of([slices])))
    assert caught.value.subject == f"quota/team/{MEMORY}"

    await harness.advance("p", S.RELEASED)
    await harness.store.reserve(draft("q", slices, quota=quota_of([slices])))


async def test_live_ones_are_listed_by_node(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.add(card("1"), node=OTHER)
    await harness.store.reserve(draft("p", container(("0", 1, 1))))
    await harness.store.reserve(draft("q", container(("1", 1, 1)), node=OTHER))
    await harness.store.reserve(draft("r", container(("1", 1, 1)), node=OTHER))
    await harness.advance("r", S.RELEASED)

    assert {a.pod_uid for a in await harness.ledger.live()} == {"p", "q"}
    assert [a.pod_uid for a in await harness.ledger.live(OTHER)] == ["q"]


async def test_all_live_ones_come_in_pieces_without_their_containers(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_allocations, "STANDING_BATCH", 2)
    await harness.add(card("0", slots=9))
    for name in "pqrst":
        await harness.store.reserve(draft(name, container(("0", 1, 1))))
    await harness.advance("r", S.RELEASED)

    found = [one async for some in harness.ledger.standing() for one in some]

    assert sorted(one.pod_uid for one in found) == ["p", "q", "s", "t"]
    for one in found:
        whole = await harness.store.get(one.id)
        assert whole is not None
        assert one == replace(whole, containers=(), annotations=one.annotations)


async def test_what_is_past_its_deadline_is_overdue(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1)), lease_s=-1))
    await harness.store.reserve(draft("q", container(("0", 1, 1)), lease_s=60))

    assert [a.pod_uid for a in await harness.ledger.overdue()] == ["p"]


async def test_what_is_bound_for_long_is_late_until_it_has_its_cards(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 1, 1))))
    await harness.advance("p", S.BINDING, S.RESERVED, new_token=True)
    assert await harness.ledger.late(-1) == []

    await harness.advance("p", S.BOUND, S.BINDING)
    assert [a.pod_uid for a in await harness.ledger.late(-1)] == ["p"]
    assert await harness.ledger.late(60) == []

    await harness.advance("p", S.ALLOCATED, S.BOUND)
    assert await harness.ledger.late(-1) == []


def slice_of(name: str, start: int, size: int, **changes: Any) -> DeviceShare:
    """A MIG slice of the card."""
    share = DeviceShare(
        uuid=GpuUuid(f"GPU-{name}"),
        vendor="NVIDIA",
        memory_mib=100,
        core_percent=10,
        detail={"profile": "1g.10gb", "placement": {"start": start, "size": size}},
    )
    return replace(share, **changes)


def holding(*shares: DeviceShare, index: int = 0, role: Any = "app") -> ContainerGrant:
    return ContainerGrant(index=index, name=f"c{index}", role=role, shares=shares)


async def test_sizes_types_details_and_annotations_are_kept(harness: Harness) -> None:
    await harness.add(card("0", slots=8, info={"link": [1, 2]}))
    share = slice_of("0", 4, 2, vendor="Enflame", slots=3, type="ENFLAME-X")

    change = await harness.store.reserve(
        draft("p", holding(share), annotations={"hami.io/vgpu-time": "1"})
    )

    read = await harness.store.get(change.allocation.id)
    assert read == change.allocation
    assert read.containers == (holding(share),)
    assert read.annotations == {"hami.io/vgpu-time": "1"}
    assert await harness.used("0") == (3, 100, 10)
    assert (await harness.usage("0")).device.info == {"link": [1, 2]}


async def test_a_card_tells_the_details_of_its_live_slices_only(harness: Harness) -> None:
    await harness.add(card("0"))
    first, second = slice_of("0", 0, 1), slice_of("0", 1, 1)
    await harness.store.reserve(draft("p", holding(first)))

    change = await harness.store.reserve(draft("q", holding(second)))
    [counters] = change.counters
    assert sorted(counters.holdings, key=str) == sorted([first.detail, second.detail], key=str)

    released = await harness.advance("p", S.RELEASED)
    assert released.counters[0].holdings == (second.detail,)
    assert (await harness.usage("0")).holdings == (second.detail,)


@pytest.mark.parametrize(
    ("taken", "wanted", "clash"),
    [
        pytest.param((4, 4), (4, 4), True, id="the-same"),
        pytest.param((0, 4), (3, 1), True, id="its-last-unit"),
        pytest.param((2, 1), (0, 8), True, id="around-it"),
        pytest.param((0, 4), (4, 4), False, id="beside-it"),
    ],
)
@pytest.mark.parametrize("cards", [1, 2], ids=["one-card", "two-cards"])
async def test_two_placements_never_overlap(
    harness: Harness, taken: tuple[int, int], wanted: tuple[int, int], clash: bool, cards: int
) -> None:
    await harness.add(card("0"), card("1", index=1))
    await harness.store.reserve(draft("p", holding(slice_of("0", *taken))))
    more = [slice_of("1", 0, 1)][: cards - 1]
    asked = draft("q", holding(slice_of("0", *wanted), *more))

    if not clash:
        await harness.store.reserve(asked)
        return
    with pytest.raises(CapacityConflict) as caught:
        await harness.store.reserve(asked)
    assert caught.value.subject == "GPU-0"
    await harness.advance("p", S.RELEASED)
    await harness.store.reserve(asked)


async def test_an_init_container_may_use_the_range_of_its_own_pod(harness: Harness) -> None:
    await harness.add(card("0"))
    both = slice_of("0", 0, 4)

    await harness.store.reserve(draft("p", holding(both, role="init"), holding(both, index=1)))

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("q", holding(slice_of("0", 1, 1))))
    with pytest.raises(CapacityConflict):
        await harness.store.reserve(
            draft("r", holding(slice_of("0", 4, 2)), holding(slice_of("0", 5, 2), index=1))
        )


async def test_a_move_onto_a_held_range_is_refused(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    await harness.store.reserve(draft("p", holding(slice_of("0", 0, 4))))
    await harness.store.reserve(draft("q", holding(slice_of("1", 0, 4))))
    bound = (await harness.advance("p", S.BINDING, new_token=True)).allocation

    assert bound.token is not None
    move = Move(
        allocation_id=bound.id, token=bound.token, containers=(holding(slice_of("1", 2, 1)),)
    )
    with pytest.raises(CapacityConflict):
        await harness.store.move([move])

    assert await harness.store.move([replace(move, containers=(holding(slice_of("1", 4, 4)),))])
    assert (await harness.usage("0")).holdings == ()


def of(vendor: str, memory: int, core: int) -> ContainerGrant:
    return holding(
        DeviceShare(uuid=GpuUuid("GPU-0"), vendor=vendor, memory_mib=memory, core_percent=core)
    )


async def test_the_rules_of_whole_and_no_cores_are_the_vendors_own(harness: Harness) -> None:
    await harness.add(card("0", vendor="loose"))

    await harness.store.reserve(draft("p", of("loose", 1, 0)))
    await harness.store.reserve(draft("q", of("loose", 1, 100)))
    await harness.store.reserve(draft("r", of("loose", 1, 0)))

    assert await harness.used("0") == (3, 3, 100)


async def test_a_cordon_closes_a_card_for_vendors_that_heed_it(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.cordon("0")

    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("p", of("NVIDIA", 1, 1)))
    await harness.store.reserve(draft("q", of("loose", 1, 1)))


async def test_an_exact_choice_holds_only_for_the_card_as_seen(harness: Harness) -> None:
    await harness.add(card("0", vendor="exact", core_percent=3))
    seen = {GpuUuid("GPU-0"): await harness.version("0")}
    await harness.store.reserve(draft("p", of("exact", 0, 1), seen=seen))

    # Both took the lowest bit; the sum of the two would still fit the card.
    with pytest.raises(CapacityConflict) as caught:
        await harness.store.reserve(draft("q", of("exact", 0, 1), seen=seen))
    assert caught.value.subject == "GPU-0"

    now = {GpuUuid("GPU-0"): await harness.version("0")}
    reserved = await harness.store.reserve(draft("q", of("exact", 0, 2), seen=now))
    again = {GpuUuid("GPU-0"): await harness.version("0")}
    with pytest.raises(CapacityConflict):
        await harness.store.reserve(
            draft("q", of("exact", 0, 2), seen=now, replaces=reserved.allocation.id)
        )
    await harness.store.reserve(
        draft("q", of("exact", 0, 2), seen=again, replaces=reserved.allocation.id)
    )


async def test_cores_may_be_counted_otherwise_than_registered(harness: Harness) -> None:
    await harness.add(card("0", core_percent=20))
    totals = {GpuUuid("GPU-0"): 100}

    await harness.store.reserve(draft("p", of("NVIDIA", 1, 70), core_totals=totals))
    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("q", of("NVIDIA", 1, 31), core_totals=totals))
    await harness.store.reserve(draft("r", of("NVIDIA", 1, 30), core_totals=totals))

    assert await harness.used("0") == (2, 2, 100)
    await harness.advance("p", S.RELEASED)
    await harness.advance("r", S.RELEASED)
    assert await harness.used("0") == (0, 0, 0)


def entry(pod: str, *containers: ContainerGrant, origin: Origin, **changes: Any) -> Entry:
    return Entry(
        draft=draft(pod, *containers, lease_s=0, **changes),
        state=S.ALLOCATED if origin is Origin.ADOPTED else S.BOUND,
        origin=origin,
        reason="found on its node",
        evidence={"cards": ["GPU-0"]},
    )


@pytest.mark.parametrize("origin", [Origin.ADOPTED, Origin.UNMANAGED])
async def test_a_pod_that_is_on_its_node_enters_with_a_token(
    harness: Harness, origin: Origin
) -> None:
    await harness.add(card("0"))

    change = await harness.store.enter(entry("p", container(("0", 400, 30)), origin=origin))

    held = change.allocation
    assert (held.origin, held.deadline, change.sequence) == (origin, None, 1)
    assert held.token is not None
    assert await harness.store.live_of(PodUid("p")) == held
    assert await harness.used("0") == (1, 400, 30)
    await harness.advance("p", S.RELEASED)
    assert await harness.used("0") == (0, 0, 0)


async def test_what_is_held_already_enters_beyond_capacity_and_closes_the_card(
    harness: Harness,
) -> None:
    await harness.add(card("0"))
    for pod in ("p", "q"):
        await harness.store.enter(
            entry(pod, container(("0", 700, 60)), origin=Origin.ADOPTED, quota={MEMORY: 700})
        )

    assert await harness.used("0") == (2, 1400, 120)
    with pytest.raises(CapacityConflict):
        await harness.store.reserve(draft("r", container(("0", 1, 1))))
    await harness.advance("p", S.RELEASED)
    await harness.store.reserve(draft("r", container(("0", 300, 40))))
    assert await harness.used("0") == (2, 1000, 100)


async def test_a_pod_that_came_past_us_enters_only_where_there_is_room(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.reserve(draft("p", container(("0", 700, 10))))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(entry("q", container(("0", 301, 1)), origin=Origin.UNMANAGED))
    await harness.store.enter(entry("q", container(("0", 300, 1)), origin=Origin.UNMANAGED))

    assert await harness.used("0") == (2, 1000, 11)


@pytest.mark.parametrize("origin", [Origin.ADOPTED, Origin.UNMANAGED])
async def test_a_pod_enters_once_and_only_on_cards_of_its_node(
    harness: Harness, origin: Origin
) -> None:
    await harness.add(card("0"))
    await harness.add(card("1"), node=OTHER)
    with pytest.raises(CapacityConflict):
        await harness.store.enter(entry("p", container(("1", 1, 1)), origin=origin))
    await harness.store.enter(entry("p", container(("0", 1, 1)), origin=origin))

    with pytest.raises(Conflict):
        await harness.store.enter(entry("p", container(("0", 1, 1)), origin=origin))

    assert await harness.used("0") == (1, 1, 1)
