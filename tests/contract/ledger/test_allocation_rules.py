"""Every AllocationStore keeps the rules of each vendor: sizes, ranges, combinations."""

import pytest
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import CapacityConflict

from tests.contract.ledger.allocation_stores import (
    Harness,
    S,
    card,
    draft,
    holding,
    instance,
)


async def test_sizes_types_details_and_annotations_are_kept(harness: Harness) -> None:
    await harness.add(card("0", slots=8, info={"link": [1, 2]}))
    share = instance("0", 4, 2, vendor="Enflame", slots=3, type="ENFLAME-X")

    change = await harness.store.begin(
        draft("p", holding(share), annotations={"hami.io/vgpu-time": "1"})
    )

    read = await harness.store.get(change.allocation.id)
    assert read == change.allocation
    assert read.containers == (holding(share),)
    assert read.annotations == {"hami.io/vgpu-time": "1"}
    assert await harness.used_amounts("0") == (3, 100, 10)
    assert (await harness.usage("0")).device.info == {"link": [1, 2]}


async def test_a_card_shows_the_details_of_its_live_slices_only(harness: Harness) -> None:
    await harness.add(card("0"))
    first, second = instance("0", 0, 1), instance("0", 1, 1)
    await harness.store.begin(draft("p", holding(first)))

    change = await harness.store.begin(draft("q", holding(second)))
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
    await harness.store.begin(draft("p", holding(instance("0", *taken))))
    more = [instance("1", 0, 1)][: cards - 1]
    asked = draft("q", holding(instance("0", *wanted), *more))

    if not clash:
        await harness.store.begin(asked)
        return
    with pytest.raises(CapacityConflict) as caught:
        await harness.store.begin(asked)
    assert caught.value.subject == "GPU-0"
    await harness.advance("p", S.RELEASED)
    await harness.store.begin(asked)


async def test_an_init_container_may_use_the_range_of_its_own_pod(harness: Harness) -> None:
    await harness.add(card("0"))
    both = instance("0", 0, 4)

    await harness.store.begin(draft("p", holding(both, role="init"), holding(both, index=1)))

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", holding(instance("0", 1, 1))))
    with pytest.raises(CapacityConflict):
        await harness.store.begin(
            draft("r", holding(instance("0", 4, 2)), holding(instance("0", 5, 2), index=1))
        )


def make_grant(vendor: str, memory: int, core: int) -> ContainerGrant:
    return holding(
        DeviceShare(uuid=GpuUuid("GPU-0"), vendor=vendor, memory_mib=memory, core_percent=core)
    )


async def test_the_rules_of_whole_and_no_cores_are_the_vendors_own(harness: Harness) -> None:
    await harness.add(card("0", vendor="loose"))

    await harness.store.begin(draft("p", make_grant("loose", 1, 0)))
    await harness.store.begin(draft("q", make_grant("loose", 1, 100)))
    await harness.store.begin(draft("r", make_grant("loose", 1, 0)))

    assert await harness.used_amounts("0") == (3, 3, 100)


async def test_a_cordon_closes_a_card_for_vendors_that_respect_it(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.cordon("0")

    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("p", make_grant("NVIDIA", 1, 1)))
    await harness.store.begin(draft("q", make_grant("loose", 1, 1)))


async def test_an_exact_choice_holds_only_for_the_card_as_seen(harness: Harness) -> None:
    await harness.add(card("0", vendor="exact", core_percent=3))
    seen = {GpuUuid("GPU-0"): await harness.version("0")}
    await harness.store.begin(draft("p", make_grant("exact", 0, 1), seen=seen))

    # Both took the lowest bit; the sum of the two would still fit the card.
    with pytest.raises(CapacityConflict) as caught:
        await harness.store.begin(draft("q", make_grant("exact", 0, 1), seen=seen))
    assert caught.value.subject == "GPU-0"

    now = {GpuUuid("GPU-0"): await harness.version("0")}
    await harness.store.begin(draft("q", make_grant("exact", 0, 2), seen=now))
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("r", make_grant("exact", 0, 1), seen=now))


async def test_cores_may_be_counted_otherwise_than_registered(harness: Harness) -> None:
    await harness.add(card("0", core_percent=20))
    totals = {GpuUuid("GPU-0"): 100}

    await harness.store.begin(draft("p", make_grant("NVIDIA", 1, 70), core_totals=totals))
    with pytest.raises(CapacityConflict):
        await harness.store.begin(draft("q", make_grant("NVIDIA", 1, 31), core_totals=totals))
    await harness.store.begin(draft("r", make_grant("NVIDIA", 1, 30), core_totals=totals))

    assert await harness.used_amounts("0") == (2, 2, 100)
    await harness.advance("p", S.RELEASED)
    await harness.advance("r", S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)
