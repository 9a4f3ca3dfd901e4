"""Grants for pods that are on their nodes already: what every AllocationStore promises."""

from typing import Any

import pytest
from hamicommon.domain.allocations import (
    ContainerGrant,
    Origin,
)
from hamicommon.domain.ids import PodUid
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.ledger.model import Entry

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    OTHER,
    Harness,
    S,
    card,
    container,
    draft,
)


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
    assert await harness.used_amounts("0") == (1, 400, 30)
    await harness.advance("p", S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_what_is_held_already_enters_beyond_capacity_and_closes_the_card(
    harness: Harness,
) -> None:
    await harness.add(card("0"))
    for pod in ("p", "q"):
        await harness.store.enter(
            entry(pod, container(("0", 700, 60)), origin=Origin.ADOPTED, quota={MEMORY: 700})
        )

    assert await harness.used_amounts("0") == (2, 1400, 120)
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("r", container(("0", 1, 1))))
    await harness.advance("p", S.RELEASED)
    await harness.store.begin(draft("r", container(("0", 300, 40))))
    assert await harness.used_amounts("0") == (2, 1000, 100)


async def test_a_pod_that_came_past_us_enters_only_where_there_is_room(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.begin(draft("p", container(("0", 700, 10))))

    with pytest.raises(CapacityConflict):
        await harness.store.enter(entry("q", container(("0", 301, 1)), origin=Origin.UNMANAGED))
    await harness.store.enter(entry("q", container(("0", 300, 1)), origin=Origin.UNMANAGED))

    assert await harness.used_amounts("0") == (2, 1000, 11)


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

    assert await harness.used_amounts("0") == (1, 1, 1)
