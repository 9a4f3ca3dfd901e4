"""Living processes of a region, and their ids on the host."""

from dataclasses import replace

from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.usage.regions.accounting import (
    Evidence,
    ProcessFacts,
    RegionHeld,
    RegionProcess,
    find,
    percent_of,
    proven,
)

POD = "11111111-1111-1111-1111-111111111111"
OURS = RegionProcess(pid=1, host_pid=0, started_ticks=500, held=(RegionHeld(),))
HAMIS = replace(OURS, started_ticks=0)
LIVING = HostProcess(host_pid=4711, inner_pid=1, started_ticks=500, pod_uid=POD)
CARDS = {"GPU-a": CardProcesses(pids=frozenset({4711, 4712}), busy_percent={4711: 40.0})}
SEEN = Evidence(living={4711: LIVING}, cards=CARDS)


def find_process(
    process: RegionProcess,
    evidence: Evidence | None = SEEN,
    *,
    known: int = 0,
    cards: tuple[str, ...] = ("GPU-a",),
) -> ProcessFacts:
    return find(process, pod_uids={POD}, cards=cards, evidence=evidence, known_host_pid=known)


def living(*processes: HostProcess) -> Evidence:
    return Evidence(living={one.host_pid: one for one in processes}, cards=CARDS)


def test_a_process_is_found_by_its_pid_and_start_among_those_on_its_cards() -> None:
    assert find_process(OURS) == ProcessFacts(host_pid=4711)


def test_a_process_of_another_start_pod_or_card_is_another() -> None:
    assert find_process(replace(OURS, started_ticks=501)) == ProcessFacts()
    assert find_process(replace(OURS, pid=2)) == ProcessFacts()
    assert find_process(OURS, cards=("GPU-b",)) == ProcessFacts()
    assert find_process(OURS, living(replace(LIVING, pod_uid="another"))) == ProcessFacts()


def test_where_cgroups_name_nothing_pid_and_start_are_enough() -> None:
    assert find_process(OURS, living(replace(LIVING, pod_uid=""))) == ProcessFacts(host_pid=4711)


def test_of_two_that_may_be_meant_neither_is() -> None:
    twin = replace(LIVING, host_pid=4712)

    assert find_process(OURS, living(LIVING, twin)) == ProcessFacts()


def test_a_process_that_was_found_and_ended_is_gone() -> None:
    assert find_process(OURS, known=4711) == ProcessFacts(host_pid=4711)
    assert find_process(OURS, living(), known=4711).gone
    assert find_process(OURS, living(replace(LIVING, started_ticks=900)), known=4711).gone


def test_a_library_that_knows_its_host_pid_is_believed_if_the_start_agrees() -> None:
    known = replace(OURS, host_pid=4711)

    assert find_process(known) == ProcessFacts(host_pid=4711)
    assert find_process(replace(known, started_ticks=501)).gone


def test_a_process_that_was_never_found_is_not_gone() -> None:
    assert find_process(OURS, living()) == ProcessFacts()
    assert find_process(OURS, None) == ProcessFacts()


def test_hamis_host_pid_is_never_enough_for_a_death() -> None:
    assert find_process(replace(HAMIS, host_pid=4711)) == ProcessFacts(host_pid=4711)
    assert find_process(replace(HAMIS, host_pid=99)) == ProcessFacts(host_pid=4711)
    assert find_process(replace(HAMIS, host_pid=99), living()) == ProcessFacts()


def test_the_driver_reports_who_computes() -> None:
    assert percent_of(ProcessFacts(host_pid=4711), "GPU-a", SEEN) == 40.0
    assert percent_of(ProcessFacts(host_pid=4712), "GPU-a", SEEN) == 0.0
    assert percent_of(ProcessFacts(), "GPU-a", SEEN) is None
    assert percent_of(ProcessFacts(host_pid=4711), "GPU-b", SEEN) is None
    assert percent_of(ProcessFacts(host_pid=4711), "GPU-a", None) is None
    silent = Evidence(cards={"GPU-a": CardProcesses()})
    assert percent_of(ProcessFacts(host_pid=4711), "GPU-a", silent) is None


def test_a_host_pid_is_proven_by_the_host_alone() -> None:
    """The tenant wrote the pair; the host must show that process as one of this pod."""
    pair = ProcessFacts(host_pid=4711)
    assert proven(pair, OURS, pod_uids={POD}, evidence=SEEN) == SEEN.living[4711]
    assert proven(pair, replace(OURS, pid=2), pod_uids={POD}, evidence=SEEN) is None
    assert proven(pair, OURS, pod_uids={POD.replace("1", "2")}, evidence=SEEN) is None
    assert proven(ProcessFacts(), OURS, pod_uids={POD}, evidence=SEEN) is None
    assert proven(pair, OURS, pod_uids={POD}, evidence=None) is None
