"""Scores and the choice among fitting nodes."""

import pytest
from kubelocal.kubescheduler.cluster import KnownCluster
from kubelocal.kubescheduler.cycle import best, nodes_to_find, scores, with_extender

from tests.unit.kubelocal.kubescheduler.objects import a_node, a_pod


def test_the_emptier_node_is_better() -> None:
    cluster = KnownCluster()
    for name in ("full", "empty"):
        cluster.set_node(a_node(name))
    cluster.assume(a_pod("other", requests={"cpu": "2", "memory": "4Gi"}), "full")
    totals = scores(a_pod(), cluster.nodes())
    assert best(totals) == "empty"
    # (4000 - 2000 - 100) x 100 / 4000 = 47; (8 GiB - 4 GiB - 200 MiB) x 100 / 8 GiB = 47
    assert totals["full"] == 47 + 100


def test_equal_nodes_are_taken_in_the_order_given() -> None:
    assert best({"b": 5, "a": 5, "c": 4}) == "b"


def test_an_avoided_node_is_worse() -> None:
    cluster = KnownCluster()
    cluster.set_node(a_node("avoided", taints=[{"key": "x", "effect": "PreferNoSchedule"}]))
    cluster.set_node(a_node("plain"))
    assert best(scores(a_pod(), cluster.nodes())) == "plain"


def test_preferred_affinity_counts_with_its_weight() -> None:
    def term(zone: str, weight: int) -> dict[str, object]:
        expression = {"key": "zone", "operator": "In", "values": [zone]}
        return {"weight": weight, "preference": {"matchExpressions": [expression]}}

    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    pod = a_pod(affinity={"nodeAffinity": {kind: [term("a", 20), term("b", 80)]}})
    cluster = KnownCluster()
    for zone in ("a", "b", "c"):
        cluster.set_node(a_node(zone, labels={"zone": zone}))
    totals = scores(pod, cluster.nodes())
    assert (totals["b"] - totals["c"], totals["a"] - totals["c"]) == (100, 25)


def test_an_extenders_ten_weigh_as_much_as_our_hundred() -> None:
    assert with_extender({"a": 100, "b": 90}, {"b": 10}, 2) == {"a": 100, "b": 290}


@pytest.mark.parametrize(
    ("count", "percentage", "expected"),
    [(99, 0, 99), (100, 0, 100), (400, 0, 188), (1000, 0, 420), (6000, 0, 300), (400, 100, 400)],
)
def test_of_many_nodes_only_a_part_is_tried(count: int, percentage: int, expected: int) -> None:
    assert nodes_to_find(count, percentage) == expected
