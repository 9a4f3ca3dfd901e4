"""The examples of protocol 4.6 and 4.7, and what follows from its rules."""

import pytest
from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.engine import decide, place, prioritize
from hamicommon.placement.rules import Rule
from hamicommon.placement.unschedulable import Refusal

from tests.unit.hamicommon.placement.clusters import card, cards, container, pod, view_of

SMALL = cards(memory_mib=1000, core_percent=20)


def two_by_two():
    return view_of(
        {
            "node1": [card("device1", used=(1, 2000, 25)), card("device2", index=1)],
            "node2": [card("device3"), card("device4", index=1, used=(1, 6000, 75))],
        }
    )


def placed(request, view, **options) -> Placement:
    answer = place(request, view, **options)
    assert isinstance(answer, Placement)
    return answer


def refused(request, view, **options) -> Refusal:
    answer = place(request, view, **options)
    assert isinstance(answer, Refusal)
    return answer


def uuids(placement: Placement) -> list[list[str]]:
    return [[share.uuid for share in c.shares] for c in placement.containers]


@pytest.mark.parametrize(
    ("node", "gpu", "expected"),
    [
        ("binpack", "binpack", ("node2", "device4")),
        ("binpack", "spread", ("node2", "device3")),
        ("spread", "binpack", ("node1", "device1")),
        ("spread", "spread", ("node1", "device2")),
        ("spread", "nonsense", ("node1", "device2")),
    ],
)
def test_node_and_card_follow_the_two_policies(node, gpu, expected) -> None:
    found = placed(pod(SMALL, node=node, gpu=(gpu,)), two_by_two())

    assert (found.node, found.containers[0].shares[0].uuid) == expected


def test_of_equal_cards_the_last_is_taken() -> None:
    view = view_of({"n": [card(f"g{i}", index=i) for i in range(3)]})

    assert uuids(placed(pod(cards(count=2, memory_mib=1)), view)) == [["g2", "g1"]]


def test_of_equal_cards_the_higher_numa_node_is_taken() -> None:
    view = view_of({"n": [card("g0", numa=1), card("g1", numa=0, index=1)]})

    assert uuids(placed(pod(SMALL), view)) == [["g0"]]


def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    view = view_of({name: [card(f"g-{name}")] for name in ("b", "a", "c")})

    assert placed(pod(SMALL), view).node == "a"
    assert placed(pod(SMALL, node="spread"), view).node == "a"


def test_the_same_question_has_the_same_answer() -> None:
    view = two_by_two()

    assert place(pod(SMALL), view) == place(pod(SMALL), view)


def test_init_containers_do_not_add_up_and_app_containers_do() -> None:
    view = view_of({"n": [card("g")]})
    big = cards(memory_mib=5000)

    init = pod(container(big, role="init"), container(big, role="init"), container(big))
    assert uuids(placed(init, view)) == [["g"], ["g"], ["g"]]
    assert refused(pod(big, big), view).reasons == {"n": "1/1 CardInsufficientMemory"}


def test_a_container_without_cards_keeps_its_place() -> None:
    found = placed(pod(container(), SMALL, container()), two_by_two())

    assert [len(c.shares) for c in found.containers] == [0, 1, 0]
    assert [c.index for c in found.containers] == [0, 1, 2]


def test_a_percentage_is_truncated_to_whole_mib() -> None:
    view = view_of({"n": [card("g", memory_mib=23028)]})
    request = pod(cards()).containers[0].requests[0]
    request = type(request)(vendor="NVIDIA", count=1, memory_percent=25)

    assert placed(pod(request), view).containers[0].shares[0].memory_mib == 5757


def test_cores_above_a_whole_card_are_taken_as_a_whole_card() -> None:
    view = view_of({"n": [card("g")]})

    found = placed(pod(cards(memory_mib=1, core_percent=150)), view)
    assert found.containers[0].shares[0].core_percent == 100


@pytest.mark.parametrize(
    ("usage", "request_", "selection", "reason"),
    [
        (card("g", healthy=False), SMALL, None, "CardNotHealth"),
        (card("g", cordoned=True), SMALL, None, "CardCordoned"),
        (card("g"), SMALL, Selection(use_types=("H100",)), "CardTypeMismatch"),
        (card("g"), SMALL, Selection(avoid_types=("a100",)), "CardTypeMismatch"),
        (card("g"), SMALL, Selection(mode="mig"), "CardTypeMismatch"),
        (card("g"), SMALL, Selection(use_uuids=("other",)), "CardUuidMismatch"),
        (card("g"), SMALL, Selection(avoid_uuids=("g",)), "CardUuidMismatch"),
        (card("g", used=(10, 0, 0)), SMALL, None, "CardTimeSlicingExhausted"),
        (card("g", used=(1, 7001, 0)), SMALL, None, "CardInsufficientMemory"),
        (card("g", used=(1, 0, 81)), SMALL, None, "CardInsufficientCore"),
        (
            card("g", used=(1, 0, 0)),
            cards(memory_mib=1, core_percent=100),
            None,
            "ExclusiveDeviceAllocateConflict",
        ),
        (card("g", used=(1, 0, 100)), cards(memory_mib=1), None, "CardComputeUnitsExhausted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_card_that_breaks_a_rule_is_refused_with_hamis_reason(
    usage, request_, selection, reason
) -> None:
    view = view_of({"n": [usage]})

    assert refused(pod(request_, selection=selection), view).reasons == {"n": f"1/1 {reason}"}


def test_mutex_refuses_a_card_that_is_in_use() -> None:
    view = view_of({"n": [card("g", used=(1, 10, 0))]})

    reasons = refused(pod(SMALL, gpu=("mutex",)), view).reasons
    assert reasons == {"n": "1/1 ExclusiveDeviceAllocateConflict"}


def test_memory_short_by_one_mib_does_not_fit() -> None:
    view = view_of({"n": [card("g", used=(1, 7000, 0))]})

    assert isinstance(place(pod(cards(memory_mib=1000)), view), Placement)
    assert isinstance(place(pod(cards(memory_mib=1001)), view), Refusal)


def test_reasons_are_counted_and_sorted_as_text() -> None:
    held = [card(f"g{i}", used=(10, 0, 0)) for i in range(2)]
    held += [card(f"h{i}", used=(1, 7500, 0)) for i in range(6)]

    assert refused(pod(SMALL), view_of({"n": held})).reasons == {
        "n": "2/8 CardTimeSlicingExhausted, 6/8 CardInsufficientMemory"
    }


def test_too_few_that_fit_are_counted_as_picked() -> None:
    view = view_of({"n": [card("g0"), card("g1", used=(1, 8000, 0))]})

    assert refused(pod(cards(count=2, memory_mib=10)), view).reasons == {
        "n": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    }


def test_more_cards_than_the_node_has_is_refused_without_a_count() -> None:
    refusal = refused(pod(cards(count=3, memory_mib=1)), two_by_two())

    assert refusal.reasons == dict.fromkeys(("node1", "node2"), "NodeInsufficientDevice")


def test_an_unknown_candidate_and_one_without_cards_are_unregistered() -> None:
    view = view_of({"gpu": [card("g")], "cpu": []})

    refusal = refused(
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
    assert placed(pod(SMALL), two_by_two(), candidates=[NodeName("node1")]).node == "node1"


def test_a_shortfall_has_what_was_asked_and_what_is_free() -> None:
    view = view_of(
        {"n": [card("g0", used=(1, 7900, 0)), card("g1", used=(1, 0, 90)), card("g2", slots=0)]}
    )

    found = refused(pod(SMALL), view).shortfalls[NodeName("n")]
    assert [(s.uuid, s.rule, s.requested, s.available) for s in found] == [
        ("g0", Rule.MEMORY, 1000, 100),
        ("g1", Rule.CORES, 20, 10),
        ("g2", Rule.SLOTS, 1, 0),
    ]
    assert found[0].reason == "CardInsufficientMemory"


def test_a_refusal_stays_as_it_was_when_the_view_changes() -> None:
    view = view_of({"n": [card("g", used=(1, 7900, 0))]})
    refusal = refused(pod(SMALL), view)

    view.apply(GpuUuid("g"), slots=0, memory_mib=0, core_percent=0, version=9)
    assert refusal.shortfalls[NodeName("n")][0].available == 100


def test_a_card_lost_to_another_pod_is_left_out() -> None:
    view = view_of({"n": [card("g0"), card("g1")]})

    assert uuids(placed(pod(SMALL), view, without_cards=[GpuUuid("g1")])) == [["g0"]]
    refusal = refused(pod(SMALL), view, without_cards=[GpuUuid("g0"), GpuUuid("g1")])
    assert refusal.reasons == {"n": "2/2 CardTakenByAnotherPod"}


def test_numa_bind_keeps_all_cards_on_one_numa_node() -> None:
    view = view_of(
        {"n": [card("a", numa=0), card("b", numa=0, index=1), card("c", numa=1, index=2)]}
    )
    bound = Selection(numa_bind=True)

    assert uuids(placed(pod(cards(count=2, memory_mib=1), selection=bound), view)) == [["b", "a"]]
    assert refused(pod(cards(count=3, memory_mib=1), selection=bound), view).reasons == {
        "n": "1/3 NumaNotFit, 2/3 AllocatedCardsInsufficientRequest"
    }


def test_topology_takes_the_best_connected_pair_and_the_least_connected_single() -> None:
    names = [GpuUuid(f"g{i}") for i in range(4)]
    matrix = [[0, 100, 100, 200], [100, 0, 200, 100], [100, 200, 0, 10], [200, 100, 10, 0]]
    pairs = {a: dict(zip(names, row, strict=True)) for a, row in zip(names, matrix, strict=True)}
    view = view_of({"n": [card(n, index=i) for i, n in enumerate(names)]}, {"n": pairs})
    two, one = cards(count=2, memory_mib=1), cards(memory_mib=1)

    # (g3, g0) and (g2, g1) both score 200; cards are walked from the last.
    assert uuids(placed(pod(two, gpu=("topology-aware",)), view)) == [["g3", "g0"]]
    assert uuids(placed(pod(one, gpu=("topology-aware",)), view)) == [["g3"]]


def test_a_pod_that_asks_for_no_card_is_no_question_for_the_engine() -> None:
    with pytest.raises(InvalidRequest, match="default/pod asks for no card"):
        place(pod(container()), two_by_two())


def test_priorities_run_from_0_to_10_along_the_node_policy() -> None:
    view = view_of(
        {
            "idle": [card("g0")],
            "half": [card("g1", used=(5, 4000, 50))],
            "full": [card("g2", used=(10, 8000, 100))],
        }
    )

    assert prioritize(pod(SMALL), view) == {"idle": 0, "half": 5, "full": 10}
    assert prioritize(pod(SMALL, node="spread"), view) == {"idle": 10, "half": 5, "full": 0}
    known = prioritize(pod(SMALL), view, [NodeName("half"), NodeName("nowhere")])
    assert known == {"half": 10, "nowhere": 0}


def test_a_decision_lists_the_scores_of_all_nodes_that_fit_the_best_last() -> None:
    decision = decide(pod(SMALL), two_by_two())

    assert list(decision.scores) == ["node1", "node2"]
    assert decision.scores["node1"] == pytest.approx(10 * (1 / 20 + 25 / 200 + 2000 / 16000))
