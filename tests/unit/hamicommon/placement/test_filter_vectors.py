"""The examples of protocol 4.6 and 4.7, and what follows from its rules."""

import pytest
from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.engine import decide, place
from hamicommon.placement.rules import Rule
from hamicommon.placement.unschedulable import Refusal

from tests.unit.hamicommon.placement.clusters import (
    card,
    cards,
    container,
    pod,
    two_by_two,
    view_of,
)

SMALL = cards(memory_mib=1000, core_percent=20)


def placement_of(request, view, **options) -> Placement:
    answer = place(request, view, **options)
    assert isinstance(answer, Placement)
    return answer


def refusal_of(request, view, **options) -> Refusal:
    answer = place(request, view, **options)
    assert isinstance(answer, Refusal)
    return answer


def uuids(placement: Placement) -> list[list[str]]:
    return [[share.uuid for share in c.shares] for c in placement.containers]


def test_of_equal_cards_the_last_is_taken() -> None:
    view = view_of({"n": [card(f"g{i}", index=i) for i in range(3)]})

    assert uuids(placement_of(pod(cards(count=2, memory_mib=1)), view)) == [["g2", "g1"]]


def test_of_equal_cards_the_higher_numa_node_is_taken() -> None:
    view = view_of({"n": [card("g0", numa=1), card("g1", numa=0, index=1)]})

    assert uuids(placement_of(pod(SMALL), view)) == [["g0"]]


def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    view = view_of({name: [card(f"g-{name}")] for name in ("b", "a", "c")})

    assert placement_of(pod(SMALL), view).node == "a"
    assert placement_of(pod(SMALL, node="spread"), view).node == "a"


def test_the_same_question_has_the_same_answer() -> None:
    view = two_by_two()

    assert place(pod(SMALL), view) == place(pod(SMALL), view)


def test_a_container_without_cards_keeps_its_place() -> None:
    found = placement_of(pod(container(), SMALL, container()), two_by_two())

    assert [len(c.shares) for c in found.containers] == [0, 1, 0]
    assert [c.index for c in found.containers] == [0, 1, 2]


def test_cores_above_a_whole_card_are_taken_as_a_whole_card() -> None:
    view = view_of({"n": [card("g")]})

    found = placement_of(pod(cards(memory_mib=1, core_percent=150)), view)
    assert found.containers[0].shares[0].core_percent == 100


@pytest.mark.parametrize(
    ("selection", "reason"),
    [
        (Selection(use_types=("H100",)), "CardTypeMismatch"),
        (Selection(mode="mig"), "CardTypeMismatch"),
        (Selection(use_uuids=("other",)), "CardUuidMismatch"),
    ],
)
def test_a_card_that_is_none_of_the_wanted_is_refused_with_hamis_reason(selection, reason) -> None:
    view = view_of({"n": [card("g")]})
    assert refusal_of(pod(SMALL, selection=selection), view).reasons == {"n": f"1/1 {reason}"}


def test_more_cards_than_the_node_has_is_refused_without_a_count() -> None:
    refusal = refusal_of(pod(cards(count=3, memory_mib=1)), two_by_two())

    assert refusal.reasons == dict.fromkeys(("node1", "node2"), "NodeInsufficientDevice")


def test_an_unknown_candidate_and_one_without_cards_are_unregistered() -> None:
    view = view_of({"gpu": [card("g")], "cpu": []})

    refusal = refusal_of(
        pod(cards(memory_mib=9000)),
        view,
        candidates=[NodeName("gpu"), NodeName("cpu"), NodeName("nowhere")],
    )
    assert refusal.reasons == {
        "gpu": "1/1 CardInsufficientMemory",
        "cpu": "node unregistered",
        "nowhere": "node unregistered",
    }


def test_only_candidates_are_considered() -> None:
    assert placement_of(pod(SMALL), two_by_two(), candidates=[NodeName("node1")]).node == "node1"


def test_a_shortfall_has_what_was_asked_and_what_is_free() -> None:
    view = view_of(
        {"n": [card("g0", used=(1, 7900, 0)), card("g1", used=(1, 0, 90)), card("g2", slots=0)]}
    )

    found = refusal_of(pod(SMALL), view).shortfalls[NodeName("n")]
    assert [(s.uuid, s.rule, s.requested, s.available) for s in found] == [
        ("g0", Rule.MEMORY, 1000, 100),
        ("g1", Rule.CORES, 20, 10),
        ("g2", Rule.SLOTS, 1, 0),
    ]
    assert found[0].reason == "CardInsufficientMemory"


def test_a_refusal_stays_as_it_was_when_the_view_changes() -> None:
    view = view_of({"n": [card("g", used=(1, 7900, 0))]})
    refusal = refusal_of(pod(SMALL), view)

    view.apply(GpuUuid("g"), slots=0, memory_mib=0, core_percent=0, version=9)
    assert refusal.shortfalls[NodeName("n")][0].available == 100


def test_a_card_lost_to_another_pod_is_left_out() -> None:
    view = view_of({"n": [card("g0"), card("g1")]})

    assert uuids(placement_of(pod(SMALL), view, without_cards=[GpuUuid("g1")])) == [["g0"]]
    refusal = refusal_of(pod(SMALL), view, without_cards=[GpuUuid("g0"), GpuUuid("g1")])
    assert refusal.reasons == {"n": "2/2 CardTakenByAnotherPod"}


def test_a_pod_that_asks_for_no_card_is_no_question_for_the_engine() -> None:
    with pytest.raises(InvalidRequest, match="default/pod asks for no card"):
        place(pod(container()), two_by_two())


def test_a_decision_lists_the_scores_of_all_nodes_that_fit_the_best_last() -> None:
    decision = decide(pod(SMALL), two_by_two())

    assert list(decision.scores) == ["node1", "node2"]
    assert decision.scores["node1"] == pytest.approx(10 * (1 / 20 + 25 / 200 + 2000 / 16000))
