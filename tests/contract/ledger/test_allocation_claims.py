"""Slices that pods hold together by ResourceClaims: what every AllocationStore promises."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from hamicommon.domain.allocations import Allocation, ClaimedSlice, DeviceShare, Origin
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.errors import CapacityConflict, Conflict
from hamicommon.ledger.model import Change, Entry

from tests.contract.ledger.allocation_stores import (
    Harness,
    S,
    card,
    container,
    draft,
    quota_of,
)


def make_claimed_slice(
    claim: str, *, card: str = "0", mib: int = 400, share: str = "s"
) -> ClaimedSlice:
    return ClaimedSlice(
        container=0,
        position=0,
        claim_uid=f"uid-{claim}",
        claim=claim,
        request="gpu",
        share_id=share,
        share=DeviceShare(
            uuid=GpuUuid(f"GPU-{card}"), vendor="NVIDIA", memory_mib=mib, core_percent=10
        ),
    )


def entry(pod: str, *claims: ClaimedSlice) -> Entry:
    shares = tuple(each.share for each in claims)
    granted = replace(container(), shares=shares)
    return Entry(
        draft=draft(pod, granted, lease_s=0, quota=quota_of([granted])),
        state=S.BOUND,
        origin=Origin.CLAIM,
        reason="its claims",
        evidence={"claims": []},
        claims=tuple(replace(each, position=n) for n, each in enumerate(claims)),
    )


async def live(harness: Harness, pod: str) -> Allocation:
    found = await harness.store.live_of(PodUid(pod))
    assert found is not None
    return found


async def test_a_claim_of_two_pods_is_counted_once_and_given_back_with_the_last(
    harness: Harness,
) -> None:
    await harness.add(card("0"))
    first = (await harness.store.enter(entry("p", make_claimed_slice("c")))).allocation
    second = (await harness.store.enter(entry("q", make_claimed_slice("c")))).allocation

    assert await harness.used_amounts("0") == (1, 400, 10)
    assert [each.counted for each in first.claims] == [True]
    assert [each.counted for each in second.claims] == [False]
    assert second.containers[0].shares == ()
    assert (await live(harness, "q")).claims == second.claims

    await harness.advance("p", S.RELEASED)
    heir = await live(harness, "q")
    assert await harness.used_amounts("0") == (1, 400, 10)
    assert heir.containers[0].shares == first.containers[0].shares
    assert [each.counted for each in heir.claims] == [True]

    await harness.advance("q", S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_the_second_holder_may_go_first(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.enter(entry("p", make_claimed_slice("c")))
    await harness.store.enter(entry("q", make_claimed_slice("c")))
    await harness.advance("q", S.RELEASED)
    assert await harness.used_amounts("0") == (1, 400, 10)
    await harness.advance("p", S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_of_many_holders_each_in_turn_has_the_slice_counted(harness: Harness) -> None:
    await harness.add(card("0"))
    pods = [f"p{number}" for number in range(4)]
    for pod in pods:
        await harness.store.enter(entry(pod, make_claimed_slice("c")))
    for pod in pods[:-1]:
        await harness.advance(pod, S.RELEASED)
        assert await harness.used_amounts("0") == (1, 400, 10)
    assert [each.counted for each in (await live(harness, pods[-1])).claims] == [True]
    await harness.advance(pods[-1], S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_own_slices_beside_a_shared_one_are_counted_and_given_back(harness: Harness) -> None:
    await harness.add(card("0"), card("1"))
    await harness.store.enter(
        entry("p", make_claimed_slice("own-p", mib=100), make_claimed_slice("shared"))
    )
    await harness.store.enter(
        entry("q", make_claimed_slice("shared"), make_claimed_slice("own-q", card="1", mib=200))
    )
    assert (await harness.used_amounts("0"), await harness.used_amounts("1")) == (
        (2, 500, 20),
        (1, 200, 10),
    )

    await harness.advance("p", S.RELEASED)
    assert (await harness.used_amounts("0"), await harness.used_amounts("1")) == (
        (1, 400, 10),
        (1, 200, 10),
    )
    assert sum(len(c.shares) for c in (await live(harness, "q")).containers) == 2
    await harness.advance("q", S.FAILED)
    assert (await harness.used_amounts("0"), await harness.used_amounts("1")) == (
        (0, 0, 0),
        (0, 0, 0),
    )


async def test_a_claim_that_was_allocated_again_is_another_slice(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.store.enter(entry("p", make_claimed_slice("c", share="before")))
    await harness.store.enter(entry("q", make_claimed_slice("c", share="after")))
    assert await harness.used_amounts("0") == (2, 800, 20)
    with pytest.raises(CapacityConflict):
        await harness.store.enter(entry("r", make_claimed_slice("c", share="again")))


async def test_of_pods_that_come_at_once_one_is_counted(harness: Harness) -> None:
    await harness.add(card("0"))

    async def enter(number: int) -> Change:
        # Who waits for too long has lost the race, and asks again.
        while True:
            with suppress(Conflict):
                return await harness.store.enter(entry(f"p{number}", make_claimed_slice("c")))

    changes = await asyncio.gather(*map(enter, range(6)))
    counted = [each for change in changes for each in change.allocation.claims if each.counted]
    assert len(counted) == 1
    assert await harness.used_amounts("0") == (1, 400, 10)


async def test_a_holder_that_comes_while_the_other_ends_has_the_slice(harness: Harness) -> None:
    await harness.add(card("0"))
    for turn in range(10):
        await harness.store.enter(entry(f"p{turn}", make_claimed_slice("c", share=str(turn))))
        await asyncio.gather(
            harness.advance(f"p{turn}", S.RELEASED),
            harness.store.enter(entry(f"q{turn}", make_claimed_slice("c", share=str(turn)))),
        )
        assert [each.counted for each in (await live(harness, f"q{turn}")).claims] == [True]
        assert await harness.used_amounts("0") == (1, 400, 10)
        await harness.advance(f"q{turn}", S.RELEASED)
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_a_quota_counts_a_shared_slice_once(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 500)
    await harness.store.enter(entry("p", make_claimed_slice("c")))
    await harness.store.enter(entry("q", make_claimed_slice("c")))
    await harness.advance("p", S.RELEASED)
    await harness.advance("q", S.RELEASED)
    await harness.store.enter(entry("r", make_claimed_slice("d", mib=500)))
