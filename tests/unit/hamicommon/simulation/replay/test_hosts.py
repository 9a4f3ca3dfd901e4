"""Pods without cards where kube-scheduler puts them."""

import pytest
from hamicommon.domain.ids import NodeName
from hamicommon.simulation.replay.churn import Churner
from hamicommon.simulation.replay.hosts import HostChoice
from hamicommon.simulation.replay.policies import placer
from hamicommon.simulation.replay.trace import Trace, TraceNode, TracePod

NODES = [
    TraceNode(name=NodeName(name), cpu_milli=cpu, memory_mib=memory, cards=1, model="A")
    for name, cpu, memory in (("a", 10_000, 1000), ("b", 20_000, 1000), ("c", 10_000, 2000))
]


def pod(cpu_milli: int, memory_mib: int = 0, cards: int = 0) -> TracePod:
    return TracePod(
        name="p",
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
        cards=cards,
        card_milli=1000 if cards else 0,
    )


def cluster(choice: HostChoice, policy: str = "binpack") -> Churner:
    return placer(policy, Trace(nodes=NODES, pods=[pod(1000)]), NODES, choice)


def row(under: Churner, one: TracePod) -> int | None:
    held = under.take(one)
    return None if held is None else held.row


def test_spread_pods_go_where_most_is_free_of_cpu_and_memory() -> None:
    under = cluster(HostChoice.LEAST_ALLOCATED)

    # In percent, free then of CPU and memory: a 50 and 90, b 75 and 90, c 50 and 95.
    assert row(under, pod(5000, 100)) == 1
    # a 50 and 90, b 50 and 80, c 50 and 95.
    assert row(under, pod(5000, 100)) == 2


def test_packed_pods_go_where_least_is_free() -> None:
    under = cluster(HostChoice.MOST_ALLOCATED)

    assert row(under, pod(5000, 100)) == 0
    assert row(under, pod(5000, 100)) == 0
    assert row(under, pod(5000, 100)) == 2


@pytest.mark.parametrize("choice", [HostChoice.LEAST_ALLOCATED, HostChoice.MOST_ALLOCATED])
def test_what_fits_nowhere_is_refused_and_changes_nothing(choice: HostChoice) -> None:
    under = cluster(choice)

    assert row(under, pod(20_001)) is None
    assert row(under, pod(1000, 2001)) is None
    assert row(under, pod(20_000, 1000)) == 1


@pytest.mark.parametrize("policy", ["binpack", "fragmentation", "fgd", "bestfit"])
def test_pods_with_cards_are_the_policys_and_their_cpu_counts(policy: str) -> None:
    under = cluster(HostChoice.LEAST_ALLOCATED, policy)
    for _ in range(3):
        assert under.take(pod(8000, cards=1)) is not None

    # Only b, with 20 cores, has 12 left.
    assert row(under, pod(3000)) == 1
    assert under.take(pod(0, cards=1)) is None


def test_what_ended_is_free_again() -> None:
    under = cluster(HostChoice.LEAST_ALLOCATED)
    one = pod(20_000)
    held = under.take(one)
    assert held is not None
    assert under.take(one) is None

    under.give_back(one, held)

    assert row(under, one) == 1


def test_a_pod_that_waits_for_one_node_gets_no_other() -> None:
    under = cluster(HostChoice.MOST_ALLOCATED)
    first = under.take(pod(10_000), 0)
    assert first is not None
    assert first.row == 0

    assert under.take(pod(1000), 0) is None
