"""Pods without cards where kube-scheduler puts them."""

import numpy as np
import pytest
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.cards import Int
from hamireplay.engine import EngineCluster
from hamireplay.policies import ENGINE, HostChoice, StockHosts, check_published, cluster_under
from hamireplay.trace import ReplayCluster, Trace, TraceNode, TracePod

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


def cluster(choice: HostChoice, policy: str = "binpack") -> ReplayCluster:
    return cluster_under(policy, Trace(nodes=NODES, pods=[pod(1000)]), NODES, choice)


def row(under: ReplayCluster, one: TracePod) -> int | None:
    held = under.take(one)
    return None if held is None else held.row


def test_spread_pods_go_where_most_is_free_of_cpu_and_memory() -> None:
    under = cluster(HostChoice.MIN_ALLOCATED)

    # In percent, free then of CPU and memory: a 50 and 90, b 75 and 90, c 50 and 95.
    assert row(under, pod(5000, 100)) == 1
    # a 50 and 90, b 50 and 80, c 50 and 95.
    assert row(under, pod(5000, 100)) == 2


def test_packed_pods_go_where_least_is_free() -> None:
    under = cluster(HostChoice.MAX_ALLOCATED)

    assert row(under, pod(5000, 100)) == 0
    assert row(under, pod(5000, 100)) == 0
    assert row(under, pod(5000, 100)) == 2


@pytest.mark.parametrize("choice", [HostChoice.MIN_ALLOCATED, HostChoice.MAX_ALLOCATED])
def test_what_fits_nowhere_is_refused_and_changes_nothing(choice: HostChoice) -> None:
    under = cluster(choice)

    assert row(under, pod(20_001)) is None
    assert row(under, pod(1000, 2001)) is None
    assert row(under, pod(20_000, 1000)) == 1


@pytest.mark.parametrize("policy", ["binpack", "fragmentation", "fgd", "bestfit"])
def test_pods_with_cards_are_the_policys_and_their_cpu_counts(policy: str) -> None:
    under = cluster(HostChoice.MIN_ALLOCATED, policy)
    for _ in range(3):
        assert under.take(pod(8000, cards=1)) is not None

    # Only b, with 20 cores, has 12 left.
    assert row(under, pod(3000)) == 1
    assert under.take(pod(0, cards=1)) is None


def test_what_ended_is_free_again() -> None:
    under = cluster(HostChoice.MIN_ALLOCATED)
    one = pod(20_000)
    held = under.take(one)
    assert held is not None
    assert under.take(one) is None

    under.give_back(one, held)

    assert row(under, one) == 1


def test_a_pod_that_waits_for_one_node_gets_no_other() -> None:
    under = cluster(HostChoice.MAX_ALLOCATED)
    first = under.take(pod(10_000), 0)
    assert first is not None
    assert first.row == 0

    assert under.take(pod(1000), 0) is None


class Scored(EngineCluster):
    """A cluster with given scores for its hosts."""

    levels: Int

    def host_levels(self, cpu_milli: int, rows: Int) -> Int:
        return self.levels[rows]


def make_hosts(*levels: int) -> StockHosts:
    under = Scored(Trace(nodes=NODES, pods=[pod(1000)]), NODES, ENGINE["binpack"])
    under.levels = np.array(levels)
    return StockHosts(under, NODES, HostChoice.EXTENDER, under)


def test_a_step_of_our_scores_counts_50_beside_kube_schedulers_own() -> None:
    # Free then, in percent of CPU and memory: a 50 and 90, b 75 and 90, c 50 and 95. The pod makes
    # b the least uneven: kube-scheduler's own sums are 135, 153 and 135.
    assert row(make_hosts(9, 9, 9), pod(5000, 100)) == 1
    assert row(make_hosts(9, 8, 8), pod(5000, 100)) == 0
    assert row(make_hosts(8, 8, 9), pod(5000, 100)) == 2


def test_with_equal_scores_kube_scheduler_also_evens_cpu_and_memory() -> None:
    under = make_hosts(9, 9, 9)
    for cpu, memory, at in ((10_000, 1000, 0), (6000, 0, 1), (1000, 400, 2)):
        assert under.take(pod(cpu, memory), at) is not None

    # Free then: b 70 and 70, c 90 and 65, so c is the emptier one by 7. But the pod makes b even,
    # and c uneven: 82 and 71 of 100.
    assert row(under, pod(0, 300)) == 1


def test_our_scores_send_pods_where_no_card_is_left_without_cpu() -> None:
    trace = Trace(nodes=NODES, pods=[pod(10_000, cards=1)])
    under = cluster_under("fragmentation", trace, NODES, HostChoice.EXTENDER)
    assert under.take(pod(10_000, cards=1)) is not None

    taken = [row(under, pod(1000)) for _ in range(10)]

    # Of b, whose card needs half of its CPU; kube-scheduler by itself would use both nodes.
    assert taken == [1] * 10


@pytest.mark.parametrize("policy", ["fgd", "bestfit"])
def test_a_published_policy_has_no_scores_for_them(policy: str) -> None:
    trace = Trace(nodes=NODES, pods=[pod(1000, cards=1)])

    with pytest.raises(InvalidRequest, match=f"policy {policy} has no scores for pods without"):
        check_published([policy], trace, HostChoice.EXTENDER)
    check_published([policy], trace, HostChoice.MIN_ALLOCATED)
