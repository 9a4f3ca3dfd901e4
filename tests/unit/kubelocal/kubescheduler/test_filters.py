"""kube-scheduler's own filters, and its reasons."""

from typing import Any

import pytest
from kubelocal.kubescheduler.cluster import KnownCluster, why_unfit

from tests.unit.kubelocal.kubescheduler.objects import a_node, a_pod, known_node

NONE: frozenset[str] = frozenset()
NO_MATCH = "node(s) didn't match Pod's node affinity/selector"


def test_a_pod_that_asks_for_nothing_fits() -> None:
    assert why_unfit(a_pod(), known_node(a_node()), ignored=NONE) == ()


def test_every_lacking_resource_is_named() -> None:
    pod = a_pod(requests={"memory": "9Gi", "cpu": "4001m", "nvidia.com/gpu": "1"})
    assert why_unfit(pod, known_node(a_node()), ignored=NONE) == (
        "Insufficient cpu",
        "Insufficient memory",
        "Insufficient nvidia.com/gpu",
    )


def test_the_last_milli_cpu_fits() -> None:
    assert why_unfit(a_pod(requests={"cpu": "4"}), known_node(a_node()), ignored=NONE) == ()


def test_a_resource_that_an_extender_decides_is_not_counted() -> None:
    pod = a_pod(requests={"nvidia.com/gpumem": "3000"})
    ignored = frozenset({"nvidia.com/gpumem"})
    assert why_unfit(pod, known_node(a_node()), ignored=ignored) == ()


def test_a_full_node_takes_no_pod_more() -> None:
    cluster = KnownCluster()
    cluster.set_node(a_node(allocatable={"pods": "1"}))
    cluster.assume(a_pod("first"), "n1")
    assert why_unfit(a_pod(), cluster.nodes()[0], ignored=NONE) == ("Too many pods",)


def test_what_pods_took_is_free_again_when_they_go() -> None:
    cluster = KnownCluster()
    cluster.set_node(a_node())
    first, second = a_pod("first", requests={"cpu": "3"}), a_pod("second", requests={"cpu": "3"})
    cluster.assume(first, "n1")
    assert why_unfit(second, cluster.nodes()[0], ignored=NONE) == ("Insufficient cpu",)
    first["spec"]["nodeName"] = "n1"
    cluster.set_pod(first)
    assert why_unfit(second, cluster.nodes()[0], ignored=NONE) == ("Insufficient cpu",)
    cluster.remove_pod("uid-first")
    assert why_unfit(second, cluster.nodes()[0], ignored=NONE) == ()


def test_pods_seen_before_their_node_count_on_it() -> None:
    cluster = KnownCluster()
    early = a_pod("early", requests={"cpu": "3"}, nodeName="n1")
    cluster.set_pod(early)
    cluster.set_node(a_node())
    assert cluster.nodes()[0].taken == {"cpu": 3000}


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ([], False),
        ([{"key": "gpu", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
        ([{"key": "gpu", "operator": "Equal", "value": "yes"}], True),
        ([{"key": "gpu", "value": "no"}], False),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], False),
    ],
    ids=["none", "exists", "everything", "equal", "other value", "other effect"],
)
def test_a_taint_keeps_away_what_does_not_tolerate_it(
    tolerations: list[dict[str, str]], fits: bool
) -> None:
    node = known_node(a_node(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]))
    expected = () if fits else ("node(s) had untolerated taint {gpu: yes}",)
    assert why_unfit(a_pod(tolerations=tolerations), node, ignored=NONE) == expected


def test_a_preference_against_a_node_refuses_nothing() -> None:
    node = known_node(a_node(taints=[{"key": "gpu", "effect": "PreferNoSchedule"}]))
    assert why_unfit(a_pod(), node, ignored=NONE) == ()


def test_a_cordoned_node_is_unschedulable() -> None:
    node = known_node(a_node(unschedulable=True))
    assert why_unfit(a_pod(), node, ignored=NONE) == ("node(s) were unschedulable",)


def test_a_node_selector_must_match() -> None:
    pod = a_pod(nodeSelector={"zone": "a"})
    assert why_unfit(pod, known_node(a_node(labels={"zone": "a"})), ignored=NONE) == ()
    assert why_unfit(pod, known_node(a_node()), ignored=NONE) == (NO_MATCH,)


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "cards", "operator": "Gt", "values": ["7"]}]}, True),
        ({"matchExpressions": [{"key": "cards", "operator": "Lt", "values": ["8"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["8"]}]}, False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
    ],
)
def test_required_affinity(term: dict[str, Any], fits: bool) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
    }
    node = known_node(a_node(labels={"zone": "a", "cards": "8"}))
    assert why_unfit(a_pod(affinity=affinity), node, ignored=NONE) == (() if fits else (NO_MATCH,))
