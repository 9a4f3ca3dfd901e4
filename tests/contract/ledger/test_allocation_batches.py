"""What many pods at once are promised: each step as if it were made by itself."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from hami_scheduler.adapters.postgres.allocations.batches import steps as batched_steps
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, QuotaConflict
from hamicommon.ledger.model import BindingClaim, Change, ReservationWrite, StateStep

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    NODE,
    OTHER,
    Harness,
    S,
    card,
    container,
    draft,
)

PODS = ("a", "b", "c")


async def reserved(harness: Harness, *pods: str) -> list[Allocation]:
    await harness.add(card("0"))
    slices = [draft(pod, container(("0", 100, 10))) for pod in pods]
    return [(await harness.store.reserve(one)).allocation for one in slices]


def claim(pod: str, *, node: NodeName = NODE, lease_s: float = 30) -> BindingClaim:
    return BindingClaim(pod_uid=PodUid(pod), node=node, actor="scheduler", lease_s=lease_s)


def bound(allocation: Allocation, *, token: int | None, node: NodeName | None = None) -> StateStep:
    return StateStep(
        allocation_id=allocation.id,
        sources=frozenset({S.BINDING}),
        target=S.BOUND,
        actor="scheduler",
        token=token,
        node=node,
    )


async def claimed(harness: Harness, *pods: str) -> list[Allocation]:
    await reserved(harness, *pods)
    found = await harness.store.claim_all([claim(pod) for pod in pods])
    return [one for one in found if one is not None]


async def test_reservations_are_claimed_together_each_with_a_token_of_its_own(
    harness: Harness,
) -> None:
    before = await reserved(harness, *PODS)

    found = await harness.store.claim_all([claim(pod) for pod in reversed(PODS)])

    assert [one and one.pod_uid for one in found] == list(reversed(PODS))
    assert len({one.token for one in found if one is not None}) == len(PODS)
    for allocation, pod in zip(before, PODS, strict=True):
        row = await harness.store.get(allocation.id)
        assert row in found
        assert row is not None
        assert row.containers == allocation.containers
        assert await harness.history(pod) == [
            (1, None, "reserved"),
            (2, "reserved", "binding"),
        ]


async def test_only_a_reservation_on_the_node_is_claimed(harness: Harness) -> None:
    await reserved(harness, *PODS)
    await harness.store.claim_all([claim("a")])

    wanted = [claim("a"), claim("b", node=OTHER), claim("nobody"), claim("c")]
    found = await harness.store.claim_all(wanted)

    assert [one and one.pod_uid for one in found] == [None, None, None, "c"]
    assert await harness.history("b") == [(1, None, "reserved")]


async def test_a_claim_never_brings_the_deadline_nearer(harness: Harness) -> None:
    [one, two] = await reserved(harness, "a", "b")
    assert one.deadline is not None
    assert two.deadline is not None

    short, long = await harness.store.claim_all([claim("a", lease_s=5), claim("b", lease_s=500)])

    assert short is not None
    assert long is not None
    assert long.deadline is not None
    assert short.deadline == one.deadline
    assert long.deadline > two.deadline + timedelta(seconds=300)


async def test_steps_of_many_are_made_together_each_guarded_by_its_row(harness: Harness) -> None:
    a, b, c = await claimed(harness, *PODS)
    gone = StateStep(
        allocation_id=AllocationId("00000000-0000-0000-0000-000000000000"),
        sources=frozenset({S.BINDING}),
        target=S.BOUND,
    )

    done = await harness.store.advance_all(
        [
            bound(a, token=a.token),
            bound(b, token=(b.token or 0) + 100),
            gone,
            bound(c, token=c.token, node=OTHER),
        ]
    )

    assert done == [True, False, False, False]
    assert await harness.history("a") == [
        (1, None, "reserved"),
        (2, "reserved", "binding"),
        (3, "binding", "bound"),
    ]
    for other in (b, c):
        assert await harness.store.get(other.id) == other
    row = await harness.store.get(a.id)
    assert row is not None
    assert (row.state, row.deadline) == (S.BOUND, None)
    assert await harness.store.advance_all([bound(c, token=c.token, node=NODE)]) == [True]


def allocated(allocation: Allocation, *, token: int | None) -> StateStep:
    return StateStep(
        allocation_id=allocation.id,
        sources=frozenset({S.BOUND}),
        target=S.ALLOCATED,
        actor="node-agent",
        token=token,
        node=allocation.node,
    )


async def test_two_steps_of_one_pod_are_made_together_and_both_are_in_its_history(
    harness: Harness,
) -> None:
    a, b, c = await claimed(harness, *PODS)
    old = (c.token or 0) + 100

    done = await harness.store.advance_all(
        [
            bound(a, token=a.token),
            bound(b, token=b.token),
            allocated(a, token=a.token),
            bound(c, token=c.token),
            allocated(c, token=old),
            allocated(a, token=a.token),
        ]
    )

    assert done == [True, True, True, True, False, False]
    assert await harness.history("a") == [
        (1, None, "reserved"),
        (2, "reserved", "binding"),
        (3, "binding", "bound"),
        (4, "bound", "allocated"),
    ]
    rows = [await harness.store.get(one.id) for one in (a, b, c)]
    assert [row and row.state for row in rows] == [S.ALLOCATED, S.BOUND, S.BOUND]
    assert await harness.history("c") == [
        (1, None, "reserved"),
        (2, "reserved", "binding"),
        (3, "binding", "bound"),
    ]
    if harness.database is not None:
        times = await harness.database.fetchrow(
            "SELECT bound_at, allocated_at, lock_deadline FROM allocations WHERE id = $1", a.id
        )
        assert None not in tuple(times)
        announced = await harness.database.fetch(
            "SELECT payload->>'state' AS state, subject FROM outbox"
            " WHERE payload->>'pod_uid' = 'a' AND (payload->>'sequence')::int > 2 ORDER BY id"
        )
        assert [tuple(row) for row in announced] == [
            ("bound", "hami.events.v1.allocation.bound"),
            ("allocated", "hami.events.v1.allocation.allocated"),
        ]


async def test_who_has_written_the_first_of_two_steps_leaves_the_second(harness: Harness) -> None:
    a, b = await claimed(harness, "a", "b")
    await harness.store.advance(bound(a, token=a.token))

    done = await harness.store.advance_all(
        [
            bound(a, token=a.token),
            allocated(a, token=a.token),
            bound(b, token=b.token),
            allocated(b, token=b.token),
        ]
    )

    assert done == [False, True, True, True]
    assert [len(await harness.history(pod)) for pod in ("a", "b")] == [4, 4]


async def test_a_row_that_somebody_has_locked_holds_up_no_other(harness: Harness) -> None:
    a, b, c = await claimed(harness, *PODS)
    async with AsyncExitStack() as stack:
        # A store in memory has no locks.
        if harness.database is not None:
            connection = await stack.enter_async_context(harness.database.transaction())
            await connection.execute("SELECT 1 FROM allocations WHERE id = $1 FOR UPDATE", b.id)
        done = await harness.store.advance_all([bound(x, token=x.token) for x in (a, b, c)])

    assert done == [True, harness.database is None, True]
    again = await harness.store.advance_all([bound(b, token=b.token)])
    assert again == [harness.database is not None]


async def test_a_batch_that_fails_as_a_whole_is_made_one_by_one(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await claimed(harness, "a", "b")
    if harness.database is not None:
        # As when another event of one of the pods came in between: its number is taken.
        wrong = batched_steps.ADVANCE_ALL.replace(
            "coalesce(max(e.sequence), 0) + 1", "max(e.sequence)"
        )
        assert wrong != batched_steps.ADVANCE_ALL
        monkeypatch.setattr(batched_steps, "ADVANCE_ALL", wrong)

    steps = [bound(a, token=a.token), bound(b, token=b.token)]
    assert await harness.store.advance_all(steps) == [True, True]


async def test_the_live_rows_of_some_pods_are_read_without_their_containers(
    harness: Harness,
) -> None:
    a, _b = await claimed(harness, "a", "b")

    found = await harness.ledger.standing_of([PodUid("a"), PodUid("nobody")])

    assert [(one.id, one.state, one.containers) for one in found] == [(a.id, S.BINDING, ())]


def planned(pod: str, *shares: tuple[str, int, int], claimed: bool = False, **changes: Any) -> Any:
    return ReservationWrite(
        draft=draft(pod, container(*shares), **changes),
        claim=claim(pod, lease_s=500) if claimed else None,
    )


async def test_reservations_of_many_are_written_together_and_some_are_claimed_with_it(
    harness: Harness,
) -> None:
    await harness.add(card("0"), card("1"))

    writes = [
        planned("a", ("0", 100, 10)),
        planned("b", ("0", 100, 0), claimed=True),
        planned("c", ("1", 100, 10), claimed=True),
    ]
    found = await harness.store.reserve_all(writes)

    changes = [one for one in found if isinstance(one, Change)]
    assert [one.allocation.state for one in changes] == [S.RESERVED, S.BINDING, S.BINDING]
    assert [one.sequence for one in changes] == [1, 1, 1]
    assert await harness.used("0") == (2, 200, 10)
    assert await harness.used("1") == (1, 100, 10)
    for change, write in zip(changes, writes, strict=True):
        row = await harness.store.get(write.draft.allocation_id)
        assert row == change.allocation
        assert row.containers == write.draft.placement.containers
    assert [one.allocation.token is None for one in changes] == [True, False, False]
    assert len({one.allocation.token for one in changes}) == len(PODS)
    assert await harness.history("a") == [(1, None, "reserved")]
    assert await harness.history("b") == [(1, None, "reserved"), (2, "reserved", "binding")]
    # The counters of a card are those after all of the batch, or after each in turn.
    last = {c.uuid: c for one in changes for c in one.counters}
    assert {c.uuid: (c.used_slots, c.used_memory_mib) for c in last.values()} == {
        "GPU-0": (2, 200),
        "GPU-1": (1, 100),
    }
    assert last["GPU-0"].version == await harness.version("0")
    late = changes[1].allocation.deadline
    assert late is not None
    assert changes[0].allocation.deadline is not None
    assert late > changes[0].allocation.deadline + timedelta(seconds=300)
    if harness.database is not None:
        announced = await harness.database.fetch(
            "SELECT subject, payload->>'pod_uid' AS pod, payload->>'sequence' AS number,"
            " jsonb_array_length(payload->'counters') AS cards FROM outbox"
            " WHERE subject LIKE '%allocation%' AND payload->>'pod_uid' = 'b' ORDER BY id"
        )
        assert [tuple(row) for row in announced] == [
            ("hami.events.v1.allocation.reserved", "b", "1", 1),
            ("hami.events.v1.allocation.binding", "b", "2", 0),
        ]


async def test_what_does_not_fit_on_a_card_together_is_written_as_far_as_it_fits(
    harness: Harness,
) -> None:
    await harness.add(card("0"), card("1"))

    found = await harness.store.reserve_all(
        [
            planned("a", ("0", 600, 10)),
            planned("b", ("0", 600, 10), claimed=True),
            planned("c", ("1", 100, 10)),
        ]
    )

    assert [isinstance(one, Change) for one in found] == [True, False, True]
    assert isinstance(found[1], CapacityConflict)
    assert found[1].subject == "GPU-0"
    assert await harness.used("0") == (1, 600, 10)
    assert await harness.history("b") == []


async def test_a_pod_that_has_a_grant_refuses_alone(harness: Harness) -> None:
    await reserved(harness, "a")

    found = await harness.store.reserve_all(
        [planned("a", ("0", 100, 10)), planned("b", ("0", 100, 10))]
    )

    assert [type(one) for one in found] == [Conflict, Change]
    assert await harness.used("0") == (2, 200, 20)


async def test_a_quota_is_guarded_in_a_batch(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 150)

    found = await harness.store.reserve_all(
        [planned(pod, ("0", 100, 10), quota={MEMORY: 100}) for pod in ("a", "b")]
    )

    assert [type(one) for one in found] == [Change, QuotaConflict]
    assert await harness.used("0") == (1, 100, 10)


async def test_a_slice_without_cores_gets_none_of_a_card_whose_cores_are_used_up(
    harness: Harness,
) -> None:
    await harness.add(card("0"))

    found = await harness.store.reserve_all(
        [planned("a", ("0", 100, 60)), planned("b", ("0", 100, 40)), planned("c", ("0", 100, 0))]
    )

    assert [type(one) for one in found] == [Change, Change, CapacityConflict]


async def test_slices_that_want_a_card_to_themselves_are_written_one_by_one(
    harness: Harness,
) -> None:
    await harness.add(*(card(str(number)) for number in range(4)))

    found = await harness.store.reserve_all(
        [
            planned("a", ("0", 100, 100), claimed=True),
            planned("b", ("1", 100, 10), mutex=True),
            planned("c", ("2", 100, 10), ("3", 100, 10)),
        ]
    )

    assert [type(one) for one in found] == [Change, Change, Change]
    states = [one.allocation.state for one in found if isinstance(one, Change)]
    assert states == [S.RESERVED, S.RESERVED, S.RESERVED]


async def test_a_card_that_somebody_has_locked_holds_up_no_other(harness: Harness) -> None:
    await harness.add(card("0"), card("1"))
    async with AsyncExitStack() as stack:
        if harness.database is not None:
            connection = await stack.enter_async_context(harness.database.transaction())
            await connection.execute("SELECT 1 FROM devices WHERE uuid = 'GPU-0' FOR UPDATE")
        found = await harness.store.reserve_all(
            [planned("a", ("0", 100, 10)), planned("b", ("1", 100, 10))]
        )

    # It is waited for by itself, as long as a lock is.
    locked = Change if harness.database is None else Conflict
    assert [type(one) for one in found] == [locked, Change]
