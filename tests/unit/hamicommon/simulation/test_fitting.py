"""How many more pods fit: what filling the cluster pod by pod finds, without filling it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.fitting import fitting
from hamicommon.simulation.planner import plan
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node, placed_pod

NOW = datetime(2026, 11, 20, tzinfo=UTC)
VENDORS = every_vendor()
MAX_PODS = 200


def a_cluster(*held_mib: int) -> Cluster:
    """A node for each, so much of whose first card is granted."""
    names = [f"n{number}" for number in range(len(held_mib))]
    pods = [
        placed_pod(f"GPU-{name}-0,NVIDIA,{held},0:;", on=name)
        for name, held in zip(names, held_mib, strict=True)
        if held
    ]
    return read_cluster([node(name, {}) for name in names], pods, VENDORS)


def count_fitting(pod: Json, cluster: Cluster, most: int = MAX_PODS) -> dict[str, int]:
    found = fitting(pod, cluster.view, VENDORS, now=NOW, most=most)
    return {str(each.node): each.pods for each in found}


@settings(max_examples=15)
@given(
    held=st.lists(st.integers(0, 8).map(lambda n: n * 1000), min_size=1, max_size=3),
    memory=st.integers(500, 9000),
    cards=st.integers(1, 2),
)
def test_it_is_as_many_as_can_be_placed_one_after_the_other(
    held: list[int], memory: int, cards: int
) -> None:
    pod = asking(gpus(cards, memory))
    counts = count_fitting(pod, a_cluster(*held))

    cluster = a_cluster(*held)
    answers = plan([pod] * (sum(counts.values()) + 1), cluster, VENDORS, now=NOW)

    placed_on = [answer.verdict.chosen for answer in answers]
    assert placed_on[-1] is None
    assert {name: placed_on.count(name) for name in counts} == counts  # type: ignore[comparison-overlap] # names


def test_the_view_that_is_asked_stays_as_it_is() -> None:
    cluster = a_cluster(0, 3000)
    before = {name: cluster.view.cards(name) for name in cluster.nodes}

    assert count_fitting(asking(gpus(1, 500)), cluster)["n0"] > 1
    assert {name: cluster.view.cards(name) for name in cluster.nodes} == before


def test_no_more_are_counted_on_a_node_than_are_asked_for() -> None:
    assert count_fitting(asking(gpus(1, 1)), a_cluster(0), most=2) == {"n0": 2}


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [({}, "asks for no card"), ({"nvidia.com/gpu": -1}, "nvidia.com/gpu is -1")],
)
def test_a_pod_that_is_none_for_cards_is_refused(limits: dict[str, int], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        count_fitting(asking(limits), a_cluster(0))
