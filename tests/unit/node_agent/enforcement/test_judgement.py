"""One look at a container: the driver's list, its grant and its region."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hami_node_agent.enforcement.judgement import (
    Account,
    ContainerKey,
    Facts,
    Judgement,
    Limit,
    LimitKey,
    ListedProcess,
    Tolerance,
    judge,
)
from hamicommon.domain.granted_cards import LimitState
from hypothesis import given
from hypothesis import strategies as st

CARD, OTHER = "GPU-a", "GPU-b"
MAIN = ContainerKey("pod-1", "main")
TOLERANCE = Tolerance(overhead_mib=1024)


def a_process(
    held_mib: int | None, pid: int = 100, card: str = CARD, owner: ContainerKey = MAIN
) -> ListedProcess:
    return ListedProcess(
        card=card,
        owner=owner,
        host_pid=pid,
        inner_pid=pid - 90,
        started_ticks=pid * 10,
        held_mib=held_mib,
    )


def an_account(*processes: ListedProcess, overhead_mib: int = 0) -> Account:
    return Account(
        overhead_mib={
            (each.inner_pid, each.started_ticks): {each.card: overhead_mib} for each in processes
        }
    )


def judge_container(
    *processes: ListedProcess,
    account: Account | None = None,
    limit: Limit | None = None,
    blind: Mapping[str, str] | None = None,
    card: str = CARD,
) -> Judgement:
    facts = Facts(
        processes=processes,
        limits={MAIN: {CARD: limit or Limit(granted_mib=4096)}},
        accounts={MAIN: an_account(*processes) if account is None else account},
        blind=blind or {},
    )
    return judge(facts, TOLERANCE)[LimitKey(*MAIN, card)]


def test_a_container_without_a_process_holds_nothing() -> None:
    found = judge_container()
    assert (found.state, found.held_mib, found.granted_mib) == (LimitState.ENFORCED, 0, 4096)


@pytest.mark.parametrize(
    ("held_mib", "overhead_mib", "state"),
    [
        (4096, 0, LimitState.ENFORCED),
        (4098, 0, LimitState.ENFORCED),  # one granule: NVML counts 2 MiB at a time
        (4099, 0, LimitState.EXCEEDED),
        (4096 + 500 + 2, 500, LimitState.ENFORCED),  # a context that came when the slice was full
        (4096 + 500 + 3, 500, LimitState.EXCEEDED),
        (4096 + 1024 + 3, 50_000, LimitState.EXCEEDED),  # what a tenant states has a bound
    ],
)
def test_beyond_its_grant_a_container_may_hold_what_the_library_cannot_refuse(
    held_mib: int, overhead_mib: int, state: LimitState
) -> None:
    process = a_process(held_mib)
    found = judge_container(process, account=an_account(process, overhead_mib=overhead_mib))
    assert (found.state, found.held_mib) == (state, held_mib)


def test_contexts_of_all_processes_excuse_no_more_than_was_granted_again() -> None:
    some = [a_process(0, pid) for pid in range(100, 110)]
    account = an_account(*some, overhead_mib=1000)
    for held_mib, state in ((4096 + 4096 + 20, LimitState.ENFORCED), (8213, LimitState.EXCEEDED)):
        assert judge_container(a_process(held_mib), *some[1:], account=account).state is state


def test_all_processes_of_a_container_count_together() -> None:
    some = [a_process(1500, pid) for pid in (100, 101, 102)]
    found = judge_container(*some)
    assert (found.state, found.held_mib) == (LimitState.EXCEEDED, 4500)
    assert "hold 4500 MiB of GPU-a" in found.reason
    assert "granted 4096 MiB" in found.reason


def test_a_process_that_its_region_does_not_have_is_past_the_library() -> None:
    known, past = a_process(100), a_process(100, pid=101)
    found = judge_container(known, past, account=an_account(known))
    assert found.state is LimitState.BYPASSED
    assert found.reason.startswith("host process 101 of it")


def test_a_pid_that_was_used_again_is_not_the_one_in_the_region() -> None:
    process = a_process(100)
    stale = Account(overhead_mib={(process.inner_pid, process.started_ticks - 1): {}})
    assert judge_container(process, account=stale).state is LimitState.BYPASSED


def test_hamis_library_states_no_start() -> None:
    process = a_process(100)
    foreign = Account(overhead_mib={(process.inner_pid, 0): {CARD: 10}})
    assert judge_container(process, account=foreign).state is LimitState.ENFORCED


def test_whole_cards_and_instances_have_no_library() -> None:
    whole = Limit(granted_mib=4096, controlled=False)
    instance = Limit(granted_mib=4096, controlled=False, hardware=True)
    nobody = Account()
    assert judge_container(a_process(100), account=nobody, limit=whole).state is LimitState.ENFORCED
    assert (
        judge_container(a_process(5000), account=nobody, limit=whole).state is LimitState.EXCEEDED
    )
    for held in (None, 5000):
        found = judge_container(a_process(held), account=nobody, limit=instance)
        assert found.state is LimitState.ENFORCED


def test_a_card_without_a_grant_is_bypassed_whatever_is_held() -> None:
    for held_mib in (0, None, 20_480):
        found = judge_container(a_process(held_mib, card=OTHER), card=OTHER)
        assert (found.state, found.granted_mib) == (LimitState.BYPASSED, 0)


def test_what_the_driver_does_not_report_is_unknown_and_what_it_reports_counts() -> None:
    dumb = a_process(None)
    assert judge_container(dumb).state is LimitState.UNKNOWN
    assert judge_container(dumb).held_mib is None
    assert judge_container(dumb, a_process(5000, pid=101)).state is LimitState.EXCEEDED


def test_an_unreadable_region_is_unknown_and_excuses_no_memory() -> None:
    broken = Account(readable=False)
    assert judge_container(a_process(100), account=broken).state is LimitState.UNKNOWN
    assert judge_container(a_process(4096 + 1024 + 2), account=broken).state is LimitState.UNKNOWN
    assert judge_container(a_process(4096 + 1024 + 3), account=broken).state is LimitState.EXCEEDED


@pytest.mark.parametrize("where", [CARD, ""])
def test_where_the_driver_lists_nobody_nothing_is_known(where: str) -> None:
    found = judge_container(blind={where: "no list"})
    assert (found.state, found.held_mib, found.reason) == (LimitState.UNKNOWN, None, "no list")
    assert judge_container(a_process(5000), blind={where: "no list"}).state is LimitState.EXCEEDED


def test_a_container_of_another_plugin_and_one_without_a_name_are_not_blamed() -> None:
    foreign, nameless = ContainerKey("pod-2", "main"), ContainerKey("pod-3", "")
    facts = Facts(
        processes=(a_process(100, owner=foreign), a_process(100, pid=101, owner=nameless)),
        elsewhere={foreign: "another plugin's"},
    )
    assert {found.state for found in judge(facts, TOLERANCE).values()} == {LimitState.UNKNOWN}


@given(
    held=st.lists(st.integers(0, 5000), max_size=5),
    stated=st.dictionaries(
        st.tuples(st.integers(0, 50), st.integers(0, 2000)),
        st.dictionaries(st.sampled_from([CARD, OTHER]), st.integers(-(2**40), 2**40)),
    ),
    readable=st.booleans(),
)
def test_nothing_in_a_region_excuses_more_than_the_tolerance(
    held: list[int], stated: dict[tuple[int, int], dict[str, int]], readable: bool
) -> None:
    processes = [a_process(mib, 100 + number) for number, mib in enumerate(held)]
    account = Account(overhead_mib=stated, readable=readable)
    found = judge_container(*processes, account=account)
    most_mib = min(4096, TOLERANCE.overhead_mib * max(1, len(held)))
    if sum(held) > 4096 + most_mib + 2 * len(held):
        assert found.state is LimitState.EXCEEDED
    if sum(held) <= 4096:
        assert found.state is not LimitState.EXCEEDED
