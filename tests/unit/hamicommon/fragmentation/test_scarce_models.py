"""Cards that some pods can't do without are left to them, and the score names what that costs."""

from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.fragmentation.bid_prices import MODEL_WEIGHT
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide, feasible
from hamicommon.placement.node_policies import FRAGMENTATION, STEP_MILLI
from hamicommon.placement.node_scores import StrandedParts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters

WHOLE = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1, core_percent=100)
ANY, CHOOSY = (
    PodShape(request=WHOLE),
    PodShape(request=WHOLE, selection=Selection(use_types=("T4",))),
)


def cluster(mix: Mix, *, t4: int, a100: int) -> ClusterView:
    """One card on every node; a T4's name is the first."""
    types = [f"a{n}-NVIDIA-T4" for n in range(t4)] + [f"b{n}-NVIDIA-A100" for n in range(a100)]
    view = clusters.view_of(
        {name: [clusters.card(name, type=name.partition("-")[2])] for name in types}
    )
    view.usual.give(mix)
    return view


def parts(view: ClusterView, node: str, request: DeviceRequest = WHOLE) -> StrandedParts:
    pod = clusters.pod(request, node=FRAGMENTATION, gpu=(FRAGMENTATION,))
    return decide(pod, view).scores.parts()[NodeName(node)]


def test_the_last_cards_of_a_model_cost_a_pod_that_runs_anywhere() -> None:
    view = cluster(Mix.of([ANY] * 5 + [CHOOSY] * 5), t4=2, a100=8)

    found = parts(view, "a0-NVIDIA-T4").scarce_models_milli
    assert 800 * MODEL_WEIGHT < found <= 1000 * MODEL_WEIGHT
    assert parts(view, "b0-NVIDIA-A100").scarce_models_milli == 0


def test_with_plenty_of_the_model_it_costs_nothing() -> None:
    view = cluster(Mix.of([ANY] * 9 + [CHOOSY]), t4=10, a100=2)

    assert parts(view, "a0-NVIDIA-T4").scarce_models_milli == 0


def test_where_nobody_is_choosy_no_model_is_scarce() -> None:
    view = cluster(Mix.of([ANY] * 9), t4=1, a100=9)

    assert parts(view, "a0-NVIDIA-T4").scarce_models_milli == 0


def test_cards_with_much_memory_are_scarce_where_slices_need_it() -> None:
    large = PodShape(request=DeviceRequest(vendor="NVIDIA", count=1, memory_mib=20_000))
    small = PodShape(request=DeviceRequest(vendor="NVIDIA", count=1, memory_mib=8000))
    view = clusters.view_of(
        {
            "large": [clusters.card("large", memory_mib=24_000)],
            "small": [clusters.card("small", memory_mib=8000, type="NVIDIA-T4")],
        }
    )
    view.usual.give(Mix.of([large, small, small]))

    found = parts(view, "large", small.request)
    assert found.scarce_models_milli > 0
    assert parts(view, "small", small.request).scarce_models_milli == 0


def test_of_places_that_strand_the_same_a_pod_leaves_the_scarce_model() -> None:
    # One pod of 83 needs the only T4, so rarely that nearly nothing is stranded without it.
    view = cluster(Mix.of([ANY] * 82 + [CHOOSY]), t4=1, a100=100)
    pod = clusters.pod(WHOLE, node=FRAGMENTATION, gpu=(FRAGMENTATION,))
    decision = decide(pod, view)

    assert abs(decision.scores.parts().popitem()[1].cards_milli) < STEP_MILLI / 2
    assert decision.placement is not None
    assert decision.placement.node == "b0-NVIDIA-A100"


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 6), st.integers(1, 100))
def test_the_score_is_minus_the_sum_of_its_parts_in_whole_steps(
    choosy: int, t4: int, a100: int, core: int
) -> None:
    several = PodShape(request=DeviceRequest(vendor="NVIDIA", count=2, core_percent=100))
    view = cluster(Mix.of([ANY] * 5 + [CHOOSY] * choosy + [several]), t4=t4, a100=a100)
    request = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1, core_percent=core)
    pod = clusters.pod(request, node=FRAGMENTATION, gpu=(FRAGMENTATION,))
    scores = decide(pod, view).scores

    assert scores.parts().keys() == scores.keys()
    for node, each in scores.parts().items():
        total = each.cards_milli + each.whole_nodes_milli + each.scarce_models_milli
        assert abs(scores[node] + total) <= 15.2
    assert feasible(pod, view).scores.parts() == scores.parts()


def test_a_usage_score_has_no_parts() -> None:
    view = cluster(Mix.of([ANY]), t4=1, a100=1)

    assert decide(clusters.pod(WHOLE), view).scores.parts() == {}
