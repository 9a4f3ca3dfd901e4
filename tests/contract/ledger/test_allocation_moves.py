"""Grants that move to the cards that the kubelet gave: what every AllocationStore promises."""

from __future__ import annotations

import pytest
from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.errors import CapacityConflict, QuotaConflict
from hamicommon.ledger.cards.moves import Move

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    Harness,
    S,
    card,
    container,
    draft,
    quota_of,
    waiting_events,
)


async def granted(harness: Harness, pod: str, *slices: tuple[str, int, int]) -> Allocation:
    """A pod that is being bound with these slices."""
    containers = [container(*slices)]
    await harness.store.begin(draft(pod, *containers, quota=quota_of(containers)))
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
    if harness.database is not None:
        moved = (await waiting_events(harness.database, "p"))[-1]
        assert moved["subject"] == "hami.events.v1.allocation.moved"


async def test_a_move_keeps_what_runs_beside_what(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))

    def on(name: str) -> tuple[ContainerGrant, ...]:
        return (
            container((name, 300, 10), name="proxy", role="sidecar"),
            container((name, 600, 10), index=1, name="setup", role="init"),
            container((name, 100, 10), index=2, name="main"),
        )

    await harness.store.begin(draft("p", *on("0")))
    bound = (await harness.advance("p", S.BINDING, new_token=True)).allocation
    assert bound.token is not None

    move = Move(allocation_id=bound.id, token=bound.token, containers=on("1"))
    [change] = await harness.store.move([move]) or ()

    assert change.allocation.containers == on("1")
    assert await harness.used("0") == (0, 0, 0)
    assert await harness.used("1") == (2, 900, 20)


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


async def test_a_move_counts_in_the_quota_what_the_pod_takes_now(harness: Harness) -> None:
    apart = await moved_apart(harness, limit=900)
    other = [container(("0", 200, 10))]

    assert await harness.store.move([apart])
    with pytest.raises(QuotaConflict):
        await harness.store.begin(draft("q", *other, quota=quota_of(other)))
    await harness.advance("p", S.RELEASED)
    whole = [container(("0", 900, 10))]
    await harness.store.begin(draft("q", *whole, quota=quota_of(whole)))

    with pytest.raises(QuotaConflict):
        await harness.store.begin(draft("r", container(("1", 1, 1)), quota={MEMORY: 1}))


async def test_a_move_that_the_quota_has_no_room_for_changes_nothing(harness: Harness) -> None:
    apart = await moved_apart(harness, limit=700)
    before = await harness.store.get(apart.allocation_id)

    with pytest.raises(QuotaConflict):
        await harness.store.move([apart])

    assert await harness.used("1") == (0, 0, 0)
    assert await harness.store.get(apart.allocation_id) == before
    rest = [container(("1", 300, 10))]
    await harness.store.begin(draft("q", *rest, quota=quota_of(rest)))


async def test_two_pods_that_change_places_need_no_room_in_the_quota(harness: Harness) -> None:
    await harness.add(card("0", slots=1), card("1", index=1, slots=1))
    await harness.limit("team", 1300)
    first = await granted(harness, "p", ("0", 400, 30))
    second = await granted(harness, "q", ("1", 900, 70))

    assert await harness.store.move([onto(first, ("1", 400, 30)), onto(second, ("0", 900, 70))])


async def moved_apart(harness: Harness, *, limit: int) -> Move:
    """A pod whose two containers share 400 MiB of a card are to be on two, in a namespace with a
    quota."""
    await harness.add(card("0"), card("1", index=1))
    await harness.limit("team", limit)
    together = init_and_app("0", "0")
    await harness.store.begin(draft("p", *together, quota=quota_of(together)))
    bound = (await harness.advance("p", S.BINDING, new_token=True)).allocation
    return Move(allocation_id=bound.id, token=bound.token, containers=init_and_app("0", "1"))


def init_and_app(first: str, second: str) -> tuple[ContainerGrant, ContainerGrant]:
    return (
        container((first, 400, 30), name="init", role="init"),
        container((second, 400, 30), index=1),
    )
