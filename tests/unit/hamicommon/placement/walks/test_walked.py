"""Pods with several containers: a decision walks only the nodes that have changed."""

import pytest
from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import PodRequest
from hamicommon.fragmentation import policy
from hamicommon.placement import engine, filter
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import place

from tests.unit.hamicommon.placement import clusters

NODES = 6
POD = clusters.pod(
    clusters.container(clusters.cards(memory_mib=7000), name="prepare", role="init"),
    clusters.container(clusters.cards(memory_mib=4000, core_percent=30), name="main"),
    clusters.container(clusters.cards(memory_mib=1000, core_percent=5), name="sidecar"),
    node="fragmentation",
    gpu=("fragmentation",),
)


def grant(view: ClusterView, placement: Placement, version: int) -> None:
    for took in placement.footprints():
        [usage] = [
            state.usage
            for state in view.cards(placement.node)
            if state.usage.device.uuid == took.uuid
        ]
        view.apply(
            took.uuid,
            slots=usage.used_slots + took.slots,
            memory_mib=usage.used_memory_mib + took.memory_mib,
            core_percent=usage.used_core_percent + took.core_percent,
            version=version,
        )


def place_pod(pod: PodRequest, view: ClusterView) -> Placement:
    found = place(pod, view)
    assert isinstance(found, Placement)
    return found


def test_only_changed_nodes_are_walked_and_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view, walked = clusters.idle_nodes(NODES), list[int]()

    def count_rows(request: PodRequest, view: ClusterView, rows: Int, *rest: tuple[()]) -> object:
        walked.append(len(rows))
        return filter.fit_with_places(request, view, rows, *rest)

    monkeypatch.setattr(policy, "fit_with_places", count_rows)
    # A chosen row is not walked again for the cards that it gives.
    monkeypatch.delattr(engine, "fit_with_picks")
    for version in range(2, 6):
        kept = place_pod(POD, view)
        view.memory, known = Memory(), view.memory
        again = place_pod(POD, view)
        view.memory = known
        assert kept == again
        grant(view, kept, version)

    assert walked[::2] == [NODES, 1, 1, 1]
    assert set(walked[1::2]) == {NODES}


def test_a_card_that_was_just_lost_is_not_taken_for_kept() -> None:
    view = clusters.idle_nodes(NODES)
    first = place_pod(POD, view)
    lost = [took.uuid for took in first.footprints()]
    second = place(POD, view, without_cards=[*lost, GpuUuid("n5-0")])

    assert isinstance(second, Placement)
    assert not {took.uuid for took in second.footprints()} & {*lost, GpuUuid("n5-0")}
    assert place_pod(POD, view) == first
