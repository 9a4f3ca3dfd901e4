"""Rooms that are held until their victims are gone: promises of every AllocationStore (SAFE-7)."""

from collections.abc import AsyncIterator

import pytest
from hami_scheduler.adapters.postgres.allocations.rooms import PostgresRooms
from hami_scheduler.adapters.postgres.row_repairs import PostgresCounters
from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import CapacityConflict, Conflict, QuotaConflict
from hamicommon.ledger.model import Entry, Room, RoomVictim

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    Harness,
    S,
    card,
    container,
    draft,
    holding,
    instance,
    open_store,
)


def room_of(pod: str, *containers: ContainerGrant, victims: list[Allocation]) -> Entry:
    room = Room(
        priority=1000,
        victims=tuple(RoomVictim(allocation_id=each.id, priority=10) for each in victims),
    )
    return Entry(draft=draft(pod, *containers), state=S.RESERVED, room=room)


async def running(harness: Harness, pod: str, *containers: ContainerGrant) -> Allocation:
    await harness.store.begin(draft(pod, *containers))
    await harness.advance(pod, S.ALLOCATED)
    found = await harness.store.live_of(PodUid(pod))
    assert found is not None
    return found


async def take_room(harness: Harness, pod: str) -> None:
    await harness.advance(pod, S.BINDING, new_token=True, lease_s=60.0)


async def test_a_room_counts_beside_its_victim_and_is_taken_when_that_is_gone(
    harness: Harness,
) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 800, 50)))

    change = await harness.store.enter(room_of("high", container(("0", 900, 60)), victims=[victim]))

    assert change.allocation.state is S.RESERVED
    assert await harness.used_amounts("0") == (2, 1700, 110)
    with pytest.raises(CapacityConflict):
        await take_room(harness, "high")
    assert (await harness.store.live_of(PodUid("high"))) == change.allocation
    await harness.advance("low", S.RELEASED)
    assert await harness.used_amounts("0") == (1, 900, 60)
    await take_room(harness, "high")
    found = await harness.store.live_of(PodUid("high"))
    assert found is not None
    assert (found.state, found.containers) == (S.BINDING, change.allocation.containers)
    assert await harness.used_amounts("0") == (1, 900, 60)
    assert [step[1:] for step in await harness.history("high")] == [
        (None, "reserved"),
        ("reserved", "binding"),
    ]


async def test_nobody_gets_what_is_freed_for_a_room(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 800, 50)))
    await harness.store.enter(room_of("high", container(("0", 900, 60)), victims=[victim]))
    await harness.advance("low", S.RELEASED)

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("thief", container(("0", 200, 1))))
    await harness.store.begin(draft("small", container(("0", 100, 1))))
    await take_room(harness, "high")

    assert await harness.used_amounts("0") == (2, 1000, 61)


async def test_a_room_that_ends_gives_its_cards_back(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 800, 50)))
    await harness.store.enter(room_of("high", container(("0", 900, 60)), victims=[victim]))

    await harness.advance("high", S.EXPIRED)
    assert await harness.used_amounts("0") == (1, 800, 50)
    await harness.store.begin(draft("other", container(("0", 200, 1))))


@pytest.mark.parametrize(
    ("memory", "why"), [(1001, "the card is too small"), (900, "somebody stays beside the victim")]
)
async def test_a_room_that_would_not_fit_without_its_victims_is_refused(
    harness: Harness, memory: int, why: str
) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 500, 50)))
    await running(harness, "stays", container(("0", 200, 10)))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(room_of("high", container(("0", memory, 10)), victims=[victim]))
    assert await harness.used_amounts("0") == (2, 700, 60), why


async def test_rooms_share_a_victim_as_far_as_its_slices_go(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 800, 50)))
    await harness.store.enter(room_of("high", container(("0", 500, 10)), victims=[victim]))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(room_of("large", container(("0", 501, 10)), victims=[victim]))
    await harness.store.enter(room_of("other", container(("0", 500, 10)), victims=[victim]))
    with pytest.raises(CapacityConflict):
        await take_room(harness, "other")
    await harness.advance("low", S.RELEASED)
    await take_room(harness, "other")
    await take_room(harness, "high")

    assert await harness.used_amounts("0") == (2, 1000, 20)


async def test_a_victim_that_is_over_is_refused(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 800, 50)))
    await harness.advance("low", S.RELEASED)

    with pytest.raises(Conflict, match="has changed"):
        await harness.store.enter(room_of("high", container(("0", 400, 10)), victims=[victim]))


async def test_a_room_obeys_the_quota(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 900)
    victim = await running(harness, "low", container(("0", 800, 50)))
    entry = room_of("high", container(("0", 901, 10)), victims=[victim])
    wanted = draft("high", container(("0", 901, 10)), quota={MEMORY: 901})

    with pytest.raises(QuotaConflict):
        await harness.store.enter(Entry(draft=wanted, state=S.RESERVED, room=entry.room, reason=""))


async def test_a_room_keeps_the_rules_that_its_pod_was_placed_by(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", container(("0", 500, 50)))
    stays = await running(harness, "stays", container(("0", 100, 10)))
    alone = draft("high", container(("0", 500, 10)), policy=Policy(gpu=("mutex",)))
    both = room_of("high", container(("0", 500, 10)), victims=[victim, stays])

    with pytest.raises(CapacityConflict):
        await harness.store.enter(
            Entry(
                draft=alone,
                state=S.RESERVED,
                room=room_of("high", victims=[victim]).room,
            )
        )
    await harness.store.enter(Entry(draft=alone, state=S.RESERVED, room=both.room))
    await harness.advance("low", S.RELEASED)
    with pytest.raises(CapacityConflict):
        await take_room(harness, "high")
    await harness.advance("stays", S.RELEASED)
    await take_room(harness, "high")


async def test_a_room_is_where_an_instance_still_is_and_is_taken_when_that_is_gone(
    harness: Harness,
) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", holding(instance("0", 0, 4)))
    stays = instance("0", 4, 4)
    await running(harness, "stays", holding(stays))

    wanted = instance("0", 2, 2)
    await harness.store.enter(room_of("high", holding(wanted), victims=[victim]))
    held = (await harness.usage("0")).holdings
    assert [wanted.detail in held, len(held)] == [True, 3]
    with pytest.raises(CapacityConflict):
        await take_room(harness, "high")
    assert len((await harness.usage("0")).holdings) == 3
    await harness.advance("low", S.RELEASED)
    await take_room(harness, "high")

    assert sorted((await harness.usage("0")).holdings, key=str) == sorted(
        [stays.detail, wanted.detail], key=str
    )
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("late", holding(instance("0", 3, 1))))


async def test_nobody_gets_the_instance_of_a_room(harness: Harness) -> None:
    await harness.add(card("0", slots=7))
    victim = await running(harness, "low", holding(instance("0", 0, 4)))
    await harness.store.enter(room_of("high", holding(instance("0", 0, 2)), victims=[victim]))

    for is_gone in (False, True):
        if is_gone:
            await harness.advance("low", S.RELEASED)
        with pytest.raises(CapacityConflict):
            await harness.store.begin(draft("thief", holding(instance("0", 1, 1))))
    await harness.store.begin(draft("beside", holding(instance("0", 2, 2))))
    await take_room(harness, "high")


async def test_two_rooms_are_never_one_instance(harness: Harness) -> None:
    await harness.add(card("0", slots=7))
    victim = await running(harness, "low", holding(instance("0", 0, 4)))
    await harness.store.enter(room_of("high", holding(instance("0", 0, 2)), victims=[victim]))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(room_of("other", holding(instance("0", 1, 2)), victims=[victim]))
    await harness.store.enter(room_of("other", holding(instance("0", 2, 2)), victims=[victim]))
    await harness.advance("low", S.RELEASED)
    await take_room(harness, "high")
    await take_room(harness, "other")


async def test_a_room_is_refused_where_the_instance_of_another_stays(harness: Harness) -> None:
    await harness.add(card("0"))
    victim = await running(harness, "low", holding(instance("0", 0, 4)))
    await running(harness, "stays", holding(instance("0", 4, 4)))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(room_of("high", holding(instance("0", 0, 8)), victims=[victim]))


@pytest.fixture(params=[pytest.param("postgres", marks=pytest.mark.integration)])
async def postgres(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """The store that counts evictions."""
    async with open_store(request) as harness:
        yield harness


async def test_a_pod_counts_once_for_the_limit_and_only_if_it_was_evicted(
    postgres: Harness,
) -> None:
    assert postgres.database is not None
    rooms = PostgresRooms(postgres.database)
    await postgres.add(card("0"), card("1"))
    victim = await running(postgres, "low", container(("0", 800, 50)))
    leaves = await running(postgres, "leaves", container(("1", 800, 50)))
    one = await postgres.store.enter(room_of("high", container(("0", 500, 10)), victims=[victim]))
    two = await postgres.store.enter(room_of("other", container(("0", 500, 10)), victims=[victim]))
    ending = RoomVictim(allocation_id=leaves.id, priority=10, is_ending=True)
    await postgres.store.enter(
        Entry(
            draft=draft("third", container(("1", 500, 10))),
            state=S.RESERVED,
            room=Room(priority=1000, victims=(ending,)),
        )
    )

    assert await rooms.lately(PodUid("high")) == (0, 1)
    assert await rooms.is_held(one.allocation.id)
    for room in (one, two):
        await rooms.note_eviction(room.allocation.id, victim.id, problem="")
    assert await rooms.lately(PodUid("high")) == (1, 1)
    assert {room.memory_mib for room in await rooms.list_held_rooms()} == {500}
    await postgres.advance("high", S.RELEASED)
    assert not await rooms.is_held(one.allocation.id)
    await postgres.advance("low", S.RELEASED)
    await take_room(postgres, "other")
    [taken_s] = await rooms.taken_after_s([one.allocation.id, two.allocation.id])
    assert 0 < taken_s < 60


_HOLDINGS = "SELECT holdings::text AS was FROM devices"


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_repair_knows_a_room_from_a_grant(postgres: Harness, is_taken: bool) -> None:
    assert postgres.database is not None
    await postgres.add(card("0"))
    victim = await running(postgres, "low", holding(instance("0", 0, 4)))
    await postgres.store.enter(room_of("high", holding(instance("0", 0, 2)), victims=[victim]))
    if is_taken:
        await postgres.advance("low", S.RELEASED)
        await take_room(postgres, "high")
    [before] = await postgres.database.fetch(_HOLDINGS)
    assert ('"room": true' in before["was"]) is not is_taken
    counters = PostgresCounters(postgres.database)
    assert await counters.repair_cards() == []

    await postgres.database.fetch("UPDATE devices SET holdings = '{}'")

    assert len(await counters.repair_cards()) == 1
    assert await postgres.database.fetch(_HOLDINGS) == [before]


_INSTANCE = """{"role": "app", "detail": {"placement": {"start": 0, "size": 4}}}"""
_ROOM = """{"role": "app", "room": true, "detail": {"placement": {"start": 2, "size": 4}}}"""


@pytest.mark.parametrize(
    ("first", "second", "is_allowed"),
    [
        pytest.param(_INSTANCE, _ROOM, True, id="an instance and a room"),
        pytest.param(_INSTANCE, _INSTANCE, False, id="two instances"),
        pytest.param(_ROOM, _ROOM, False, id="two rooms"),
    ],
)
async def test_the_ledger_itself_has_no_two_instances_and_no_two_rooms_in_one_place(
    postgres: Harness, first: str, second: str, is_allowed: bool
) -> None:
    assert postgres.database is not None
    await postgres.add(card("0"))
    change = f"""UPDATE devices SET holdings = '{{"a": [{first}], "b": [{second}]}}'"""

    if is_allowed:
        await postgres.database.fetch(change)
        return
    with pytest.raises(CapacityConflict, match="another slice has that part of the card"):
        await postgres.database.fetch(change)
