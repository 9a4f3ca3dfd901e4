"""Promises of every AllocationStore: the fakes, the one of tests/simulation, and Postgres."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hami_scheduler.adapters.postgres.allocations import store as postgres_store
from hami_scheduler.ports.ledger import AgentInventory
from hamicommon.domain.devices import NodeInventory
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.ledger.model import StateStep

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    NODE,
    OTHER,
    Harness,
    S,
    card,
    container,
    draft,
    quota_of,
)


async def test_a_grant_takes_its_slices_and_starts_the_history(harness: Harness) -> None:
    await harness.add(card("0"))

    change = await harness.store.begin(draft("p", container(("0", 400, 30))))

    assert change.allocation.state is S.BINDING
    assert (change.allocation.attempt, change.sequence) == (1, 1)
    assert change.allocation.deadline is not None
    assert await harness.used_amounts("0") == (1, 400, 30)
    [counters] = change.counters
    assert (counters.used_slots, counters.used_memory_mib, counters.used_core_percent) == (
        1,
        400,
        30,
    )
    assert await harness.history("p") == [(1, None, "binding")]
    assert await harness.store.live_of(PodUid("p")) == change.allocation


async def test_what_is_read_back_is_what_was_granted(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    containers = (
        container(("0", 100, 10), name="setup", role="init"),
        container(index=1, name="sidecar"),
        container(("1", 200, 20), ("0", 300, 30), index=2, name="main"),
    )

    change = await harness.store.begin(draft("p", *containers, traceparent="00-1-2-01"))

    read = await harness.store.get(change.allocation.id)
    assert read is not None
    assert read.containers == containers
    assert read.traceparent == "00-1-2-01"
    assert await harness.used_amounts("0") == (1, 300, 30)
    assert await harness.used_amounts("1") == (1, 200, 20)


async def test_an_init_container_is_counted_with_the_sidecars_before_it(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1))
    containers = (
        container(("0", 100, 10), ("1", 5, 5), name="proxy", role="sidecar"),
        container(("0", 600, 50), index=1, name="setup", role="init"),
        container(("0", 200, 30), index=2, name="main"),
    )

    change = await harness.store.begin(draft("p", *containers, quota=quota_of(containers)))

    read = await harness.store.get(change.allocation.id)
    assert read is not None
    assert read.containers == containers
    assert await harness.used_amounts("0") == (2, 700, 60)
    assert await harness.used_amounts("1") == (1, 5, 5)
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", container(("0", 301, 0))))
    await harness.advance("p", S.RELEASED)
    assert await harness.used_amounts("0") == await harness.used_amounts("1") == (0, 0, 0)


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
    await harness.store.begin(draft("p", container(("0", *first))))
    before = await harness.used_amounts("0")

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.begin(draft("q", container(("0", *second))))

    assert caught.value.subject == "GPU-0"
    assert await harness.used_amounts("0") == before
    assert await harness.store.live_of(PodUid("q")) is None
    assert await harness.history("q") == []


async def test_slots_are_as_limited_as_memory(harness: Harness) -> None:
    await harness.add(card("0", slots=1))
    await harness.store.begin(draft("p", container(("0", 1, 1))))

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", container(("0", 1, 1))))


async def test_policy_mutex_wants_an_empty_card(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))
    idle_only = Policy(gpu=("mutex",))

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", container(("0", 1, 1)), policy=idle_only))


@pytest.mark.parametrize("change", [{"healthy": False}], ids=["unhealthy"])
async def test_a_sick_card_gets_no_grant(harness: Harness, change: dict[str, Any]) -> None:
    await harness.add(card("0"))
    await harness.add(card("0", **change))

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("p", container(("0", 1, 1))))


async def test_of_two_cards_none_is_taken_when_one_refuses(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1, memory_mib=100))

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.begin(draft("p", container(("0", 200, 1), ("1", 200, 1))))

    assert caught.value.subject == "GPU-1"
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_one_pod_has_one_live_allocation(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))

    with pytest.raises(Conflict):
        await harness.store.begin(draft("p", container(("0", 1, 1))))

    assert await harness.used_amounts("0") == (1, 1, 1)


async def test_each_binding_gets_a_higher_token(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))

    first = await harness.advance("p", S.BINDING, new_token=True, lease_s=10)
    second = await harness.advance("p", S.BINDING, new_token=True, lease_s=10)

    assert first.allocation.token < second.allocation.token
    assert second.allocation.deadline is not None


async def test_a_step_needs_the_right_state(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))

    assert await harness.advance("p", S.ALLOCATED, S.BOUND) is None
    assert await harness.history("p") == [(1, None, "binding")]


async def test_a_step_needs_the_right_token(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))
    binding = (await harness.advance("p", S.BINDING, new_token=True)).allocation

    assert await harness.advance("p", S.FAILED, token=binding.token - 1) is None
    assert (await harness.advance("p", S.BOUND, token=binding.token)).allocation.state is S.BOUND


@pytest.mark.parametrize("end", [S.RELEASED, S.EXPIRED, S.FAILED])
async def test_every_end_gives_everything_back_once(harness: Harness, end: S) -> None:
    await harness.add(card("0"))
    allocation = (await harness.store.begin(draft("p", container(("0", 400, 30))))).allocation

    change = await harness.advance("p", end)
    again = await harness.store.advance(
        StateStep(allocation_id=allocation.id, sources=frozenset({S.BINDING}), target=end)
    )

    assert again is None
    assert [c.used_memory_mib for c in change.counters] == [0]
    assert await harness.used_amounts("0") == (0, 0, 0)
    assert await harness.store.live_of(PodUid("p")) is None
    assert (await harness.store.get(allocation.id)).state is end


async def test_a_card_that_is_gone_gets_its_slices_back_and_takes_none(harness: Harness) -> None:
    if harness.inventory is None:
        pytest.skip("the ledger in memory has no inventories")
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 400, 30))))
    nothing = NodeInventory(node=NODE, devices=(), observed_at=datetime.now(UTC))
    report = AgentInventory(inventory=nothing, agent_id="a", sequence=99)
    assert await harness.inventory.record_all([report]) != [None]

    change = await harness.advance("p", S.RELEASED)
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", container(("0", 1, 1))))

    assert [(c.used_slots, c.used_memory_mib) for c in change.counters] == [(0, 0)]


async def test_after_an_end_the_pod_may_be_granted_again(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))
    await harness.advance("p", S.EXPIRED)

    change = await harness.store.begin(draft("p", container(("0", 1, 1))))

    assert change.allocation.attempt == 2
    assert change.sequence == 3


async def test_a_quota_refuses_by_name_and_is_returned(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 500)
    slices = container(("0", 300, 10))
    await harness.store.begin(draft("p", slices, quota=quota_of([slices])))

    with pytest.raises(CapacityConflict) as caught:
        await harness.store.begin(draft("q", slices, quota=quota_of([slices])))
    assert caught.value.subject == f"quota/team/{MEMORY}"

    await harness.advance("p", S.RELEASED)
    await harness.store.begin(draft("q", slices, quota=quota_of([slices])))


async def test_live_ones_are_listed_by_node(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.add(card("1"), node=OTHER)
    await harness.store.begin(draft("p", container(("0", 1, 1))))
    await harness.store.begin(draft("q", container(("1", 1, 1)), node=OTHER))
    await harness.store.begin(draft("r", container(("1", 1, 1)), node=OTHER))
    await harness.advance("r", S.RELEASED)

    assert {a.pod_uid for a in await harness.ledger.live()} == {"p", "q"}
    assert [a.pod_uid for a in await harness.ledger.live(OTHER)] == ["q"]


async def test_all_live_ones_come_in_pieces_without_their_containers(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "STANDING_BATCH", 2)
    await harness.add(card("0", slots=9))
    for name in "pqrst":
        await harness.store.begin(draft(name, container(("0", 1, 1))))
    await harness.advance("r", S.RELEASED)

    found = [one async for some in harness.ledger.standing() for one in some]

    assert sorted(one.pod_uid for one in found) == ["p", "q", "s", "t"]
    for one in found:
        whole = await harness.store.get(one.id)
        assert whole is not None
        assert one == replace(whole, containers=(), annotations=one.annotations)


async def test_what_is_past_its_deadline_is_overdue(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1)), lease_s=-1))
    await harness.store.begin(draft("q", container(("0", 1, 1)), lease_s=60))

    assert [a.pod_uid for a in await harness.ledger.overdue()] == ["p"]


async def test_what_is_bound_for_long_is_late_until_it_has_its_cards(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 1, 1))))
    assert await harness.ledger.late(-1) == []

    await harness.advance("p", S.BOUND, S.BINDING)
    assert [a.pod_uid for a in await harness.ledger.late(-1)] == ["p"]
    assert await harness.ledger.late(60) == []

    await harness.advance("p", S.ALLOCATED, S.BOUND)
    assert await harness.ledger.late(-1) == []


async def test_further_annotations_of_its_pod_are_kept_while_it_is_live(harness: Harness) -> None:
    await harness.add(card("0"))
    asked = draft("p", container(("0", 1, 1)), annotations={"a": "1", "b": "1"})
    bound = (await harness.store.begin(asked)).allocation
    before = await harness.history("p")

    assert await harness.store.annotate(bound.id, bound.token, {"b": "2", "c": "2"})
    assert not await harness.store.annotate(bound.id, bound.token + 1, {"b": "3"})

    row = await harness.store.get(bound.id)
    assert row is not None
    assert row.annotations == {"a": "1", "b": "2", "c": "2"}
    assert await harness.history("p") == before
    await harness.advance("p", S.RELEASED)
    assert not await harness.store.annotate(bound.id, bound.token, {"b": "3"})


async def test_a_grant_that_has_ended_is_not_begun_again_under_its_id(harness: Harness) -> None:
    """Two calls of /bind for one placement: the second comes after the first has failed."""
    await harness.add(card("0"))
    placed = draft("p", container(("0", 400, 30)))
    await harness.store.begin(placed)
    await harness.advance("p", S.FAILED)

    with pytest.raises(Conflict):
        await harness.store.begin(placed)

    assert await harness.used_amounts("0") == (0, 0, 0)
    assert (await harness.store.begin(draft("p", container(("0", 400, 30))))).sequence == 3
