"""Invariants of every cluster and pod: nothing is over-committed, refusals are true."""

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    PodRequest,
    Policy,
    ScoreWeights,
    Selection,
)
from hamicommon.placement.engine import place
from hamicommon.placement.unschedulable import Refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters

Nodes = dict[NodeName, list[DeviceUsage]]

TYPES = ("NVIDIA A100-SXM4-80GB", "NVIDIA A10", "NVIDIA")


@st.composite
def usages(draw: st.DrawFn, node: int) -> list[DeviceUsage]:
    """Up to six cards of mixed kinds, some of them full or sick."""
    return [
        clusters.card(
            f"GPU-{node}-{place}",
            index=place,
            slots=draw(st.sampled_from((1, 2, 10))),
            memory_mib=draw(st.sampled_from((0, 1000, 8001))),
            core_percent=draw(st.sampled_from((0, 100, 200))),
            type=draw(st.sampled_from(TYPES)),
            vendor=draw(st.sampled_from(("NVIDIA",) * 9 + ("MLU",))),
            numa=draw(st.integers(0, 1)),
            mode=draw(st.sampled_from(("hami-core",) * 6 + ("", "mig"))),
            healthy=draw(st.sampled_from((True,) * 9 + (False,))),
            cordoned=draw(st.sampled_from((False,) * 9 + (True,))),
            used=draw(
                st.tuples(
                    st.integers(0, 3),
                    st.sampled_from((0, 500, 1000)),
                    st.sampled_from((0, 50, 100)),
                )
            ),
        )
        for place in range(draw(st.integers(0, 6)))
    ]


@st.composite
def clusters_of_nodes(draw: st.DrawFn) -> Nodes:
    return {NodeName(f"n{i}"): draw(usages(i)) for i in range(draw(st.integers(1, 4)))}


device_requests = st.builds(
    DeviceRequest,
    vendor=st.sampled_from(("NVIDIA",) * 9 + ("MLU",)),
    count=st.integers(1, 4),
    memory_mib=st.sampled_from((0, 0, 400, 1000)),
    memory_percent=st.sampled_from((None, 10, 33, 100)),
    core_percent=st.sampled_from((0, 0, 30, 100, 150)),
)

containers = st.builds(
    ContainerRequest,
    name=st.just("c"),
    role=st.sampled_from(("init", "app", "app")),
    requests=st.lists(device_requests, max_size=1).map(tuple),
)

uuid_lists = st.lists(
    st.sampled_from([f"GPU-{node}-{place}" for node in range(3) for place in range(3)] + [""]),
    max_size=3,
).map(tuple)

selections = st.builds(
    Selection,
    use_types=st.sampled_from(((), (), ("a100",), ("A10", "H100"), ("",))),
    avoid_types=st.sampled_from(((), (), ("A100",), ("",))),
    use_uuids=st.one_of(st.just(()), st.just(()), uuid_lists),
    avoid_uuids=uuid_lists,
    mode=st.sampled_from(("", "", "hami-core", "mig,mps")),
    numa_bind=st.sampled_from((False, False, True)),
)

policies = st.builds(
    Policy,
    node=st.sampled_from(("binpack", "spread", "fragmentation")),
    gpu=st.just(("fragmentation",))
    | st.lists(
        st.sampled_from(("binpack", "spread", "mutex", "numa", "topology-aware", "odd")),
        min_size=1,
        max_size=2,
        unique=True,
    ).map(tuple),
    weights=st.sampled_from((ScoreWeights(), ScoreWeights(slot=0, core=3, memory=1))),
)

requests = st.builds(
    PodRequest,
    uid=st.just("uid"),
    namespace=st.just("default"),
    name=st.just("pod"),
    containers=st.lists(containers, min_size=1, max_size=3)
    .filter(lambda cs: any(c.requests for c in cs))
    .map(tuple),
    selections=st.one_of(st.just({}), selections.map(lambda s: {"NVIDIA": s})),
    policy=policies,
)


@settings(max_examples=50)
@given(clusters_of_nodes(), st.lists(requests, min_size=1, max_size=6))
def test_no_card_that_was_within_its_capacity_is_ever_over_committed(
    nodes: Nodes, pods: list[PodRequest]
) -> None:
    view = clusters.view_of(nodes)
    changed: set[GpuUuid] = set()
    for number, request in enumerate(pods, start=2):
        answer = place(request, view)
        if isinstance(answer, Refusal):
            continue
        held = {state.usage.device.uuid: state.usage for state in view.cards(answer.node)}
        for print_ in answer.footprints():
            usage = held[print_.uuid]
            changed.add(print_.uuid)
            assert view.apply(
                print_.uuid,
                slots=usage.used_slots + print_.slots,
                memory_mib=usage.used_memory_mib + print_.memory_mib,
                core_percent=usage.used_core_percent + print_.core_percent,
                version=number,
            )

    for name in nodes:
        for usage, _ in view.cards(name):
            if usage.device.uuid in changed:
                assert usage.used_slots <= usage.device.slots
                assert usage.free_memory_mib >= 0
                assert usage.free_core_percent >= 0


@settings(max_examples=50)
@given(clusters_of_nodes(), requests, st.data())
def test_cards_that_are_left_out_are_never_picked(
    nodes: Nodes, request: PodRequest, data: st.DataObject
) -> None:
    all_cards = sorted(usage.device.uuid for held in nodes.values() for usage in held)
    left_out = data.draw(st.sets(st.sampled_from(all_cards))) if all_cards else set()
    answer = place(request, clusters.view_of(nodes), without_cards=left_out)

    if not isinstance(answer, Refusal):
        assert not {share.uuid for share in answer.footprints()} & left_out
