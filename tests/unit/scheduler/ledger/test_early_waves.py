"""When the reservations of a burst are written together, and when they wait for nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hami_scheduler.ledger.reservations import early as early_reservations
from hami_scheduler.ledger.reservations.early import EarlyReservations

from tests.unit.scheduler.ledger.early_world import begun, claim, opened
from tests.waiting import PATIENCE_S


@pytest.fixture
def a_burst_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer than a busy machine takes from the first batch to the next reservation.
    monkeypatch.setattr(early_reservations, "PACE_S", 0.3)
    for limit in ("NEXT_WITHIN_S", "MOST_WAIT_S"):
        monkeypatch.setattr(early_reservations, limit, 2 * PATIENCE_S)
    monkeypatch.setattr(early_reservations, "ENOUGH", 3)


@pytest.mark.usefixtures("a_burst_waits_for_more")
async def test_reservations_whose_binders_wait_here_are_written_with_those_that_come_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace_is_over = asyncio.Event()
    wait_on = EarlyReservations._wait_on

    def seen(early: EarlyReservations, waiting: Any) -> bool:
        pace_is_over.set()
        return wait_on(early, waiting)

    monkeypatch.setattr(EarlyReservations, "_wait_on", seen)
    async with opened() as world:
        world.put("a")
        await begun(world, 1)
        world.put("b")
        binding = asyncio.create_task(world.early.claim(claim("b")))
        await asyncio.sleep(0)
        world.now[0] += 0.6
        await pace_is_over.wait()
        assert len(world.ledger.batches) == 1

        for pod in "cd":
            world.put(pod)
        assert await binding is not None
        await world.early.all_written()
        assert [write.draft.pod_uid for write in world.ledger.batches[1]] == ["b", "c", "d"]


@pytest.mark.usefixtures("a_burst_waits_for_more")
async def test_the_last_of_a_burst_wait_for_nobody_once_their_binders_are_here() -> None:
    expected = {"b", "c"}
    async with opened(expects_more=lambda: bool(expected)) as world:
        world.put("a")
        await begun(world, 1)
        bindings = []
        for pod in "bc":
            expected.discard(pod)
            world.put(pod)
            assert len(world.ledger.batches) == 1
            bindings.append(asyncio.create_task(world.early.claim(claim(pod))))

        assert None not in await asyncio.gather(*bindings)
        assert [write.draft.pod_uid for write in world.ledger.batches[1]] == ["b", "c"]


@pytest.mark.usefixtures("a_burst_waits_for_more")
async def test_a_reservation_whose_binder_may_be_elsewhere_waits_for_the_pace_alone() -> None:
    async with opened() as world:
        world.put("a")
        await begun(world, 1)
        world.put("b")
        world.now[0] += 0.6
        await begun(world, 2)
