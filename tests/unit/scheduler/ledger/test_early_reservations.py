"""Reservations that /filter answers while they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hami_scheduler.ledger.reservations import early as early_reservations
from hami_scheduler.ledger.reservations.early import CALM_S, MOST, SLOW_S
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Unavailable

from tests.unit.scheduler.ledger.early_world import (
    CARD,
    NODE,
    World,
    begun,
    claim,
    draft,
    opened,
)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as made:
        yield made


@pytest.fixture(autouse=True)
def _no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_reservations, "PACE_S", 0.0)


async def test_it_counts_at_once_and_once_only_when_it_is_written(world: World) -> None:
    world.ledger.open.clear()
    world.put("a")
    await begun(world, 1)
    assert world.used == (1, 100, 10)
    await world.view.refresh_node(NODE)
    assert world.used == (1, 100, 10)

    world.ledger.open.set()
    await world.early.all_written()

    assert world.used == (1, 100, 10)
    assert world.ledger.usage(CARD).used_slots == 1
    await world.view.refresh()
    assert world.used == (1, 100, 10)
    live = await world.ledger.live_of(PodUid("a"))
    assert live is not None
    assert live.state is AllocationState.RESERVED


async def test_those_of_one_moment_are_written_together(world: World) -> None:
    world.ledger.open.clear()
    world.put("a")
    await begun(world, 1)
    for pod in "bcd":
        world.put(pod)
    world.ledger.open.set()
    await world.early.all_written()

    assert [[write.draft.pod_uid for write in batch] for batch in world.ledger.batches] == [
        ["a"],
        ["b", "c", "d"],
    ]


async def test_a_binding_waits_for_the_ledger_and_is_claimed_with_the_reservation(
    world: World,
) -> None:
    world.ledger.open.clear()
    world.put("a")
    await begun(world, 1)
    world.put("b")
    late, together = (asyncio.create_task(world.early.claim(claim(pod))) for pod in "ab")
    again = asyncio.create_task(world.early.claim(claim("b")))
    elsewhere = asyncio.create_task(world.early.claim(claim("b", NodeName("other"))))
    await asyncio.sleep(0)
    assert not any(task.done() for task in (late, together, again, elsewhere))

    world.ledger.open.set()

    # Its reservation was under way, so it is claimed in the ledger.
    assert await late is None
    claimed = await together
    assert claimed is not None
    assert (claimed.state, claimed.token) == (AllocationState.BINDING, 1)
    assert await world.ledger.live_of(PodUid("b")) == claimed
    # Two binders never have one token.
    assert await again is None
    assert await elsewhere is None
    assert await world.early.claim(claim("nobody")) is None


async def test_a_ledger_that_is_away_fails_the_binding_and_nothing_is_held(world: World) -> None:
    world.ledger.away = True
    world.put("a")
    with pytest.raises(Unavailable, match="Postgres is not available"):
        await world.early.claim(claim("a"))

    assert world.used == (0, 0, 0)
    assert world.broken == ["a: Postgres is not available"]
    assert world.freed == [None]
    assert not world.early.fits(draft("b"))
    world.now[0] += CALM_S
    assert world.early.fits(draft("b"))


async def test_what_the_ledger_refuses_is_given_back_and_everybody_waits_for_a_while(
    world: World,
) -> None:
    # Another replica has taken most of it, which this one has not heard of.
    await world.ledger.reserve(draft("other", memory_mib=950))
    world.put("a")

    assert await world.early.claim(claim("a")) is None

    assert [reason.partition(":")[0] for reason in world.broken] == ["a"]
    await world.view.refresh()
    assert world.used == (1, 950, 10)
    assert not world.early.fits(draft("b", memory_mib=10))
    kept = world.instruments.early_answers.labels("kept")._value.get()
    assert (kept, world.instruments.early_answers.labels("broken")._value.get()) == (0, 1)


async def test_a_pod_is_answered_early_once(world: World) -> None:
    world.put("a")
    await world.early.written(PodUid("a"))
    assert not world.early.fits(draft("a"))
    known = draft("b")
    world.early.note_own(known)
    assert not world.early.fits(known)


async def test_who_comes_while_much_is_on_its_way_or_the_ledger_is_slow_waits(
    world: World,
) -> None:
    world.ledger.open.clear()
    world.put("a", memory_mib=1, cores=0)
    # It waits to be sent, so the ledger is not slow.
    world.now[0] += 2 * SLOW_S
    assert world.early.fits(draft("b"))
    await begun(world, 1)
    world.now[0] += SLOW_S
    assert world.early.fits(draft("b"))
    world.now[0] += 0.01
    assert not world.early.fits(draft("b"))
    world.ledger.open.set()
    await world.early.all_written()

    world.ledger.open.clear()
    for number in range(MOST):
        world.put(f"many-{number}", memory_mib=1, cores=0)
    assert not world.early.fits(draft("b"))


async def test_who_finds_too_many_on_their_way_waits_for_them_and_not_for_a_ledger_that_is_slow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_reservations, "MOST", 4)
    world.ledger.open.clear()
    for number in range(4):
        world.put(f"many-{number}", memory_mib=1, cores=0)
    waits = asyncio.create_task(world.early.room())
    await begun(world, 1)
    assert not waits.done()
    world.ledger.open.set()
    await waits
    assert world.early.fits(draft("b"))
    await world.early.all_written()

    world.ledger.open.clear()
    for number in range(4):
        world.put(f"more-{number}", memory_mib=1, cores=0)
    slow = asyncio.create_task(world.early.room())
    await asyncio.sleep(0)
    world.now[0] += 2 * SLOW_S
    await slow
    assert not world.early.fits(draft("c"))


@pytest.mark.parametrize(
    "changes",
    [
        {"cores": 100},
        {"mutex": True},
        {"replaces": AllocationId("x")},
        {"seen": {CARD: 1}, "core_totals": {CARD: 50}},
        {"namespace": "limited"},
    ],
)
async def test_only_what_should_fit_is_answered_early(
    world: World, changes: dict[str, Any]
) -> None:
    world.quotas.add("limited")
    assert world.early.fits(draft("a"))
    assert not world.early.fits(draft("a", **changes))


async def test_a_node_without_an_agent_of_ours_waits(world: World) -> None:
    world.agents.clear()
    assert not world.early.fits(draft("a"))


async def test_where_others_reserve_too_the_card_must_have_room_for_both(world: World) -> None:
    own = world.put("own", memory_mib=1)
    await world.early.all_written()
    world.early.reservers.note(own.allocation_id)
    assert world.early.fits(draft("a", memory_mib=800))

    world.early.reservers.note(AllocationId("of another"))
    assert world.early.fits(draft("a", memory_mib=400))
    assert not world.early.fits(draft("a", memory_mib=800))
    world.now[0] += CALM_S
    assert world.early.fits(draft("a", memory_mib=800))


async def test_nobody_is_answered_early_right_after_the_start_or_where_it_is_switched_off() -> None:
    async with opened(enabled=False) as world:
        assert not world.early.fits(draft("a"))
    async with opened() as world:
        world.now[0] -= 0.01
        assert not world.early.fits(draft("a"))


async def test_other_commits_of_the_card_keep_what_is_on_its_way(world: World) -> None:
    world.ledger.open.clear()
    world.put("a")
    change = await world.ledger.reserve(draft("other", memory_mib=300))
    world.view.apply(change.counters)
    assert world.used == (2, 400, 20)
    world.ledger.open.set()
    await world.early.all_written()
    assert world.used == (2, 400, 20)
    assert not isinstance(await world.ledger.live_of(PodUid("a")), CapacityConflict)
