"""Pods of one template: a decision walks only the nodes that have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.placement import engine, filter
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.walks import walked as walks

from tests.unit.hamicommon.placement import clusters

NODES = 6


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of rows in each walk over cached results."""
    counts: list[int] = []

    def count_rows(request: PodRequest, view: ClusterView, rows: Int, *rest: tuple[()]) -> object:
        counts.append(len(rows))
        return filter.fit_with_places(request, view, rows, *rest)

    monkeypatch.setattr(walks, "fit_with_places", count_rows)
    return counts


def grant(view: ClusterView, decision: engine.Decision) -> None:
    assert decision.placement is not None
    for took in decision.placement.footprints():
        view.shift(
            took.uuid, slots=took.slots, memory_mib=took.memory_mib, core_percent=took.core_percent
        )


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_only_changed_nodes_are_walked_and_the_answer_is_the_same(
    walked: list[int], policy: str
) -> None:
    pod = clusters.pod(clusters.cards(memory_mib=3000, core_percent=30), node=policy)
    view = clusters.idle_nodes(NODES)
    for number in range(8):
        found = decide(replace(pod, name=f"pod-{number}"), view)
        known, view.memory = view.memory, Memory()
        again = decide(pod, view)
        view.memory = known
        assert (found.placement, dict(found.scores)) == (again.placement, dict(again.scores))
        grant(view, found)

    # A shape that comes for the first time is walked, and not kept.
    assert walked == [NODES, 1, 1, 1, 1, 1, 1]


def test_what_a_node_gives_is_not_walked_for_again(
    walked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = clusters.pod(clusters.cards(memory_mib=3000), node="spread")
    view = clusters.idle_nodes(NODES)
    grant(view, decide(pod, view))
    monkeypatch.delattr(engine, "fit_with_picks")

    for _ in range(4):
        grant(view, decide(pod, view))

    assert walked == [NODES, 1, 1, 1]


def test_nodes_that_were_not_offered_are_walked_when_they_are(walked: list[int]) -> None:
    pod, view = clusters.pod(clusters.cards(memory_mib=3000)), clusters.idle_nodes(NODES)
    names = tuple(NodeName(f"n{node}") for node in range(NODES))
    decide(pod, view)
    for offered in (names[:2], names[1:4], names):
        assert set(decide(pod, view, candidates=offered).scores) == set(offered)

    assert walked == [2, 2, 2]


def test_a_full_cluster_is_refused_with_the_reason_of_every_node(walked: list[int]) -> None:
    pod, view = clusters.pod(clusters.cards(memory_mib=9000)), clusters.idle_nodes(NODES)
    first, second = decide(pod, view).refusal, decide(pod, view).refusal

    assert first is not None
    assert second is not None
    assert second.reasons == first.reasons
    assert len(second.reasons) == NODES
    assert walked == [NODES]


def test_a_card_that_was_just_lost_is_not_taken_for_kept(walked: list[int]) -> None:
    pod, view = clusters.pod(clusters.cards(memory_mib=3000)), clusters.idle_nodes(NODES)
    first = [decide(pod, view) for _ in range(2)][1].placement
    assert first is not None
    lost = [took.uuid for took in first.footprints()]

    second = decide(pod, view, without_cards=lost).placement

    assert second is not None
    assert not {took.uuid for took in second.footprints()} & set(lost)
    assert decide(pod, view).placement == first
    assert walked == [NODES]


def test_what_was_kept_is_forgotten_when_the_view_grows(walked: list[int]) -> None:
    pod, view = clusters.pod(clusters.cards(memory_mib=3000)), clusters.idle_nodes(NODES)
    for _ in range(2):
        decide(pod, view)
    more = view.room + 1 - NODES
    for node in range(more):
        view.set_node(NodeName(f"m{node}"), [CardState(clusters.card(f"m{node}-0"), 1)])
    for _ in range(2):
        assert len(decide(pod, view).scores) == NODES + more

    assert walked == [NODES, NODES + more]


def test_a_card_that_became_unhealthy_is_given_no_more(walked: list[int]) -> None:
    pod, view = clusters.pod(clusters.cards(memory_mib=3000)), clusters.idle_nodes(NODES)
    for _ in range(2):
        decide(pod, view)
    node = NodeName("n0")
    view.set_node(
        node,
        [
            CardState(replace(state.usage, device=replace(state.usage.device, healthy=False)), 2)
            for state in view.cards(node)
        ],
    )

    assert set(decide(pod, view).scores) == set(view.nodes) - {node}
    assert walked == [NODES, 1]
