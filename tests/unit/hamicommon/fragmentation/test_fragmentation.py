"""The node policy `fragmentation`: least is stranded, by the pods that are usual."""

from collections.abc import Sequence

import numpy as np
import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, HostRequest, PodRequest, Selection
from hamicommon.fragmentation.costs import MODEL_WEIGHT
from hamicommon.fragmentation.remainders import lost_by_one
from hamicommon.placement.cluster.arrivals import Mix, PodShape, ShapeCounts, shape_of
from hamicommon.placement.cluster.cache import Memory
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide, feasible
from hamicommon.placement.node_policies import FRAGMENTATION, STEP_MILLI
from hamicommon.placement.node_scores import StrandedParts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters, test_invariants


def cores(percent: int, count: int = 1) -> DeviceRequest:
    return DeviceRequest(vendor="NVIDIA", count=count, memory_mib=1, core_percent=percent)


def memory(mib: int) -> DeviceRequest:
    return DeviceRequest(vendor="NVIDIA", count=1, memory_mib=mib)


def shapes(*wanted: tuple[DeviceRequest, int]) -> Mix:
    return Mix.of(PodShape(request=request) for request, times in wanted for _ in range(times))


def pod(wanted: DeviceRequest) -> PodRequest:
    return clusters.pod(wanted, node=FRAGMENTATION, gpu=(FRAGMENTATION,))


def node(name: str, *used: tuple[int, int, int]) -> list[DeviceUsage]:
    return [
        clusters.card(f"{name}-{number}", index=number, used=each)
        for number, each in enumerate(used)
    ]


def view_of(mix: Mix, **nodes: Sequence[DeviceUsage]) -> ClusterView:
    view = clusters.view_of(nodes)
    view.usual.give(mix)
    return view


def chosen(wanted: DeviceRequest, view: ClusterView) -> str:
    placement = decide(pod(wanted), view).placement
    assert placement is not None
    return placement.footprints()[0].uuid


IDLE, HALF = (0, 0, 0), (1, 1, 50)


def test_a_share_completes_a_card_before_it_opens_another() -> None:
    mix = shapes((cores(100), 5), (cores(50), 5))
    view = view_of(mix, a=node("a", IDLE, IDLE), b=node("b", IDLE, HALF))

    assert chosen(cores(50), view) == "b-1"


def test_of_memory_alone_the_same_holds() -> None:
    mix = shapes((memory(8000), 5), (memory(4000), 5))
    view = view_of(mix, a=node("a", IDLE, IDLE), b=node("b", IDLE, (1, 4000, 0)))

    assert chosen(memory(4000), view) == "b-1"


def test_a_remainder_that_nobody_can_use_is_filled_first() -> None:
    mix = shapes((cores(81), 8), (cores(47), 4), (cores(15), 1))
    view = view_of(mix, a=node("a", (1, 1, 53)), b=node("b", (1, 1, 81)))

    assert chosen(cores(15), view) == "b-0"


def test_the_last_whole_node_is_kept_for_pods_with_several_cards() -> None:
    mix = shapes((cores(100), 9), (cores(100, count=2), 3))
    view = view_of(mix, a=node("a", IDLE, IDLE), b=node("b", (1, 1, 100), IDLE, (1, 1, 100)))

    assert chosen(cores(100), view) == "b-1"


def test_a_node_whose_cpu_ends_is_given_to_the_pod_that_asks_for_little_of_it() -> None:
    hungry = PodShape(request=cores(100), cpu_milli=8000)
    modest = PodShape(request=cores(100), cpu_milli=1000)
    view = view_of(
        Mix.of([hungry] * 9 + [modest]), a=node("a", IDLE), b=node("b", IDLE), c=node("c", IDLE)
    )
    for name, cpu in (("a", 9000), ("b", 2000), ("c", 16000)):
        view.set_free_cpu(NodeName(name), cpu)

    assert chosen(cores(100), view) == "b-0"


def test_whole_cards_are_not_expected_of_a_card_with_a_slice_of_memory_alone() -> None:
    mix = shapes((cores(100), 5), (memory(1000), 5))
    view = view_of(mix, a=node("a", IDLE), b=node("b", (1, 1000, 0)))

    assert chosen(memory(1000), view) == "b-0"


def test_the_score_is_minus_what_is_stranded_in_milli() -> None:
    mix = shapes((cores(100), 1), (cores(50), 1))
    view = view_of(mix, a=node("a", IDLE), b=node("b", HALF))
    scores = decide(pod(cores(50)), view).scores

    [(best, most), (_, least)] = scores.best(2)
    assert best == "b"
    assert most - least >= 100


def test_without_an_arrival_every_pod_is_placed_all_the_same() -> None:
    view = clusters.view_of({"a": node("a", IDLE)})

    assert chosen(cores(50), view) == "a-0"


@pytest.mark.parametrize(
    ("left", "lost"), [(19, 190), (53, 30), (100, 0), (0, 0), (81, 0), (6, 60)]
)
def test_a_remainder_is_worth_the_slices_that_really_cost_something(left: int, lost: int) -> None:
    sizes, asked = np.array([16, 47, 81]), np.array([2.0, 30.0, 68.0])

    assert lost_by_one(sizes, asked / 100)[left] == pytest.approx(lost, abs=1)


def test_small_slices_that_come_often_make_every_remainder_of_use() -> None:
    lost = lost_by_one(np.array([5, 80]), np.array([0.9, 0.1]))

    assert lost[20] == pytest.approx(0, abs=1e-6)
    assert lost[22] == pytest.approx(20, abs=1e-6)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 50)), min_size=1, max_size=12))
def test_no_remainder_loses_more_than_it_is(asked: list[tuple[int, int]]) -> None:
    counts = dict(asked)
    sizes = np.array(sorted(counts))
    lost = lost_by_one(sizes, np.array([float(counts[size]) for size in sizes.tolist()]))

    assert (lost >= 0).all()
    assert (lost <= np.arange(101) * 10 + 1e-6).all()
    assert lost[100] == 0
    assert (lost[: sizes[0]] == np.arange(sizes[0]) * 10).all()


def test_the_same_arrivals_make_the_same_mix_after_a_restart() -> None:
    arrived = [PodShape(request=cores(10 + at % 7 * 10)) for at in range(300)]
    before, after = ShapeCounts(), ShapeCounts()
    for shape in arrived:
        before.add_arrival(shape)
    for shape in arrived:
        after.add_arrival(shape)

    assert before.mix().distance(after.mix()) == 0


def test_what_no_longer_arrives_fades() -> None:
    counts = ShapeCounts(half_life=100)
    for percent in (50, 30):
        for _ in range(400):
            counts.add_arrival(PodShape(request=cores(percent)))
    mix = dict(zip(counts.mix().shapes, counts.mix().parts.tolist(), strict=True))

    assert mix[PodShape(request=cores(30))] == pytest.approx(16 / 17, abs=0.01)


def test_rare_pods_with_several_cards_are_part_of_the_mix() -> None:
    counts = ShapeCounts()
    for _ in range(999):
        counts.add_arrival(PodShape(request=cores(50)))
    counts.add_arrival(PodShape(request=cores(100, count=8)))

    assert PodShape(request=cores(100, count=8)) in counts.mix().shapes


fragmented = test_invariants.requests.map(
    lambda request: PodRequest(
        uid=request.uid,
        namespace=request.namespace,
        name=request.name,
        containers=request.containers,
        selections=request.selections,
        policy=clusters.pod(cores(1), node=FRAGMENTATION, gpu=(FRAGMENTATION,)).policy,
        host=HostRequest(cpu_milli=500),
    )
)


@settings(max_examples=15)
@given(test_invariants.clusters_of_nodes(), st.lists(fragmented, min_size=2, max_size=6))
def test_what_is_kept_of_nodes_answers_as_if_they_were_asked_again(
    nodes: test_invariants.Nodes, pods: list[PodRequest]
) -> None:
    view = clusters.view_of(nodes)
    for version, request in enumerate(pods, start=2):
        shape = shape_of(request)
        assert shape is not None
        view.usual.add_arrival(shape)
        kept = decide(request, view)
        view.memory, known = Memory(), view.memory
        fresh = decide(request, view)
        view.memory = known
        assert kept.placement == fresh.placement
        assert dict(kept.scores) == dict(fresh.scores)
        if kept.placement is None:
            continue
        held = {state.usage.device.uuid: state.usage for state in view.cards(kept.placement.node)}
        for each in kept.placement.footprints():
            view.apply(
                each.uuid,
                slots=held[each.uuid].used_slots + each.slots,
                memory_mib=held[each.uuid].used_memory_mib + each.memory_mib,
                core_percent=held[each.uuid].used_core_percent + each.core_percent,
                version=version,
            )


@settings(max_examples=60)
@given(test_invariants.clusters_of_nodes(), fragmented)
def test_the_chosen_node_gives_the_cards_that_its_walk_gives(
    nodes: test_invariants.Nodes, request: PodRequest
) -> None:
    view = clusters.view_of(nodes)
    shape = shape_of(request)
    assert shape is not None
    view.usual.add_arrival(shape)
    decision, walked = decide(request, view), feasible(request, view)

    assert set(decision.scores) == set(walked.placements)
    if decision.placement is not None:
        assert next(reversed(walked.placements)) == decision.placement.node
        assert walked.placements[decision.placement.node] == decision.placement


# --- cards that some pods can't do without are left to them, and the score names what that costs


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
