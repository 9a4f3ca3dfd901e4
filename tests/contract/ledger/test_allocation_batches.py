"""Commands that are committed together have the effects of separate commits."""

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import CapacityConflict, Conflict, InvalidRequest, QuotaConflict
from hamicommon.ledger.model import Change, Draft, Entry, QuotaUse, StateStep

from tests.contract.ledger.allocation_stores import (
    MEMORY,
    OTHER,
    Harness,
    S,
    card,
    container,
    draft,
    quota_of,
)

PODS = ("a", "b", "c")


def slice_of(pod: str, memory_mib: int = 100, core_percent: int = 10, **changes: Any) -> Draft:
    return draft(pod, container(("0", memory_mib, core_percent)), **changes)


async def begin_bindings(harness: Harness, *pods: str) -> list[Allocation]:
    await harness.add(card("0"))
    answers = await harness.store.commit([Entry(draft=slice_of(pod)) for pod in pods])
    return [answer.allocation for answer in answers if isinstance(answer, Change)]


def step(
    allocation: Allocation, target: S, *, token: int | None = None, node: NodeName | None = None
) -> StateStep:
    source = S.BOUND if target is S.ALLOCATED else S.BINDING
    return StateStep(
        allocation_id=allocation.id,
        sources=frozenset({source}),
        target=target,
        actor="scheduler",
        token=allocation.token if token is None else token,
        node=node,
    )


def outcomes(answers: Any) -> list[str]:
    return [
        answer.allocation.state.value if isinstance(answer, Change) else type(answer).__name__
        for answer in answers
    ]


async def test_grants_begin_together_each_with_a_token_of_its_own(harness: Harness) -> None:
    found = await begin_bindings(harness, *PODS)

    assert [one.pod_uid for one in found] == list(PODS)
    assert len({one.token for one in found}) == len(PODS)
    assert await harness.used_amounts("0") == (3, 300, 30)
    for allocation, pod in zip(found, PODS, strict=True):
        assert await harness.store.get(allocation.id) == allocation
        assert await harness.history(pod) == [(1, None, "binding")]


async def test_the_counters_of_a_batch_are_those_of_all_of_it(harness: Harness) -> None:
    await harness.add(card("0"))

    answers = await harness.store.commit([Entry(draft=slice_of(pod)) for pod in PODS])

    newest = max(
        (c for a in answers if isinstance(a, Change) for c in a.counters), key=lambda c: c.version
    )
    assert (newest.used_slots, newest.used_memory_mib) == (3, 300)
    assert newest.version == await harness.version("0")


async def test_steps_of_many_are_made_together_each_guarded_by_its_row(harness: Harness) -> None:
    a, b, c = await begin_bindings(harness, *PODS)
    gone = StateStep(
        allocation_id=AllocationId("00000000-0000-0000-0000-000000000000"),
        sources=frozenset({S.BINDING}),
        target=S.BOUND,
    )

    answers = await harness.store.commit(
        [
            step(a, S.BOUND),
            step(b, S.BOUND, token=(b.token or 0) + 100),
            gone,
            step(c, S.BOUND, node=OTHER),
        ]
    )

    assert outcomes(answers) == ["bound", "NoneType", "NoneType", "NoneType"]
    assert await harness.history("a") == [(1, None, "binding"), (2, "binding", "bound")]
    assert await harness.history("b") == await harness.history("c") == [(1, None, "binding")]


async def test_two_steps_of_one_pod_are_both_in_its_history(harness: Harness) -> None:
    [a] = await begin_bindings(harness, "a")

    answers = await harness.store.commit([step(a, S.BOUND), step(a, S.ALLOCATED)])

    assert outcomes(answers) == ["bound", "allocated"]
    row = await harness.store.get(a.id)
    assert row is not None
    assert (row.state, row.token, row.deadline) == (S.ALLOCATED, a.token, None)
    assert await harness.history("a") == [
        (1, None, "binding"),
        (2, "binding", "bound"),
        (3, "bound", "allocated"),
    ]


async def test_a_binding_may_become_allocated_in_one_step(harness: Harness) -> None:
    [a] = await begin_bindings(harness, "a")
    both = StateStep(
        allocation_id=a.id, sources=frozenset({S.BINDING}), target=S.ALLOCATED, token=a.token
    )

    assert outcomes(await harness.store.commit([both])) == ["allocated"]
    assert await harness.history("a") == [(1, None, "binding"), (2, "binding", "allocated")]


async def test_what_ends_gives_its_slices_to_what_begins_beside_it(harness: Harness) -> None:
    await harness.add(card("0"))
    old = (await harness.store.begin(slice_of("a", 900))).allocation
    end = StateStep(
        allocation_id=old.id, sources=frozenset({S.BINDING}), target=S.RELEASED, token=old.token
    )

    answers = await harness.store.commit([Entry(draft=slice_of("b", 800)), end])

    assert outcomes(answers) == ["binding", "released"]
    assert await harness.used_amounts("0") == (1, 800, 10)


async def test_what_does_not_fit_together_begins_as_far_as_it_fits(harness: Harness) -> None:
    await harness.add(card("0"))

    answers = await harness.store.commit(
        [
            Entry(draft=slice_of(pod, memory))
            for pod, memory in zip(PODS, (600, 600, 400), strict=True)
        ]
    )

    assert outcomes(answers) == ["binding", "CapacityConflict", "binding"]
    refused = answers[1]
    assert isinstance(refused, CapacityConflict)
    assert refused.subject == "GPU-0"
    assert await harness.used_amounts("0") == (2, 1000, 20)
    assert await harness.history("b") == []


async def test_of_two_cards_a_refused_pod_takes_none(harness: Harness) -> None:
    await harness.add(card("0"), card("1", index=1, memory_mib=100))
    both = draft("a", container(("0", 200, 1), ("1", 200, 1)))

    answers = await harness.store.commit([Entry(draft=both), Entry(draft=slice_of("b"))])

    assert outcomes(answers) == ["CapacityConflict", "binding"]
    assert await harness.used_amounts("0") == (1, 100, 10)


async def test_a_pod_that_has_a_grant_refuses_alone(harness: Harness) -> None:
    await begin_bindings(harness, "a")

    answers = await harness.store.commit([Entry(draft=slice_of(pod)) for pod in ("b", "a", "b")])

    assert outcomes(answers) == ["binding", "Conflict", "Conflict"]
    assert await harness.used_amounts("0") == (2, 200, 20)


async def test_a_quota_is_guarded_in_a_batch_and_its_use_is_answered(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 250)
    drafts = [slice_of(pod) for pod in PODS]
    drafts = [
        slice_of(pod, quota=quota_of(one.placement.containers))
        for pod, one in zip(PODS, drafts, strict=True)
    ]

    answers = await harness.store.commit([Entry(draft=one) for one in drafts])

    assert outcomes(answers) == ["binding", "binding", "QuotaConflict"]
    refused = answers[2]
    assert isinstance(refused, QuotaConflict)
    assert (refused.limit, refused.used, refused.wanted) == (250, 200, 100)
    last = answers[1]
    assert isinstance(last, Change)
    assert last.quotas == (QuotaUse("team", MEMORY, 250, 200),)
    ended = await harness.advance("a", S.RELEASED)
    assert ended.quotas == (QuotaUse("team", MEMORY, 250, 100),)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((100, 100), (100, 0), id="no-cores-beside-all-of-them"),
        pytest.param((100, 0), (100, 100), id="all-cores-beside-none"),
    ],
)
async def test_rules_over_cores_hold_within_a_batch(
    harness: Harness, first: tuple[int, int], second: tuple[int, int]
) -> None:
    await harness.add(card("0"))

    answers = await harness.store.commit(
        [Entry(draft=slice_of("a", *first)), Entry(draft=slice_of("b", *second))]
    )

    assert outcomes(answers) == ["binding", "CapacityConflict"]


async def test_the_live_rows_of_some_pods_are_read_without_their_containers(
    harness: Harness,
) -> None:
    await begin_bindings(harness, *PODS)
    await harness.advance("b", S.RELEASED)

    rows = await harness.ledger.standing_of([PodUid(pod) for pod in ("a", "b", "nobody")])

    assert [(row.pod_uid, row.state, row.containers) for row in rows] == [("a", S.BINDING, ())]


async def test_a_command_that_the_ledger_refuses_keeps_the_whole_batch_out(
    harness: Harness,
) -> None:
    """The writer then commits each command separately (`ledger/writer.py`)."""
    if harness.database is None:
        pytest.skip("the ledger in memory has no constraints")
    await harness.add(card("0"))
    unknown = draft("a", container(("0", 1, 1)), node=NodeName("no-such-node"))
    impossible = Entry(draft=slice_of("b"), state=S.RELEASED)

    assert outcomes(await harness.store.commit([Entry(draft=unknown)])) == ["CapacityConflict"]
    with pytest.raises(InvalidRequest):
        await harness.store.commit([impossible, Entry(draft=slice_of("c"))])
    assert await harness.used_amounts("0") == (0, 0, 0)


async def test_a_row_that_another_transaction_has_locked_is_waited_for_and_given_up(
    harness: Harness,
) -> None:
    if harness.database is None:
        pytest.skip("the ledger in memory has no locks")
    [a] = await begin_bindings(harness, "a")
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(harness.database.transaction())
        await connection.fetch("SELECT 1 FROM allocations WHERE id = $1 FOR UPDATE", a.id)
        with pytest.raises(Conflict):
            await harness.store.commit([step(a, S.BOUND)])
    assert outcomes(await harness.store.commit([step(a, S.BOUND)])) == ["bound"]


def make_group_entry(
    pod: str, memory_mib: int = 100, name: str = "default/g", **changes: Any
) -> Entry:
    one = slice_of(pod, memory_mib, **changes)
    return Entry(draft=replace(one, quota=quota_of(one.placement.containers)), together=name)


async def test_entries_of_one_name_are_granted_together(harness: Harness) -> None:
    await harness.add(card("0"))

    answers = await harness.store.commit([make_group_entry(pod) for pod in PODS])

    assert outcomes(answers) == ["binding"] * 3
    assert await harness.used_amounts("0") == (3, 300, 30)


async def test_of_entries_of_one_name_none_is_granted_if_one_is_refused(harness: Harness) -> None:
    await harness.add(card("0"))
    await harness.limit("team", 500)

    answers = await harness.store.commit(
        [
            Entry(draft=slice_of("alone")),
            make_group_entry("a"),
            make_group_entry("b", 1_000_000),
            make_group_entry("c"),
            make_group_entry("d", name="default/other"),
        ]
    )

    assert [type(answer).__name__ for answer in answers] == [
        *("Change", "Conflict", "QuotaConflict", "Conflict", "Change")
    ]
    assert "one of default/g was refused" in str(answers[1])
    assert await harness.used_amounts("0") == (2, 200, 20)
    assert await harness.history("a") == []
    # The withdrawn grants are free.
    assert outcomes(await harness.store.commit([make_group_entry("a")])) == ["binding"]
    assert await harness.used_amounts("0") == (3, 300, 30)
