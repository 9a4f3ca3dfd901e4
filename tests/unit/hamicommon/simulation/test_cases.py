"""The batch form: the answer to a line, also to an invalid one."""

import json
from typing import Any

import pytest
from hamicommon.k8s.types import Json
from hamicommon.simulation.cases import Simulator

from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node, placed_pod

SIMULATOR = Simulator(vendors=every_vendor())


def answer(pod: Json, *nodes: Json, pods: tuple[Json, ...] = ()) -> Json:
    case = {"name": "case", "in": {"nodes": nodes, "pods": pods, "pod": pod}}
    return SIMULATOR.answer_line(json.dumps(case), 1)


def test_every_node_shows_which_cards_or_why_not() -> None:
    given = answer(asking(gpus(2, 1000)), node("small", {}), node("big", {}, {}), node("none"))
    devices = "GPU-big-1,NVIDIA,1000,0:GPU-big-0,NVIDIA,1000,0:;"
    assert given == {
        "name": "case",
        "nodes": {
            "small": {"fits": False, "reason": "NodeInsufficientDevice"},
            "big": {
                "fits": True,
                "annotations": {
                    "hami.io/vgpu-devices-to-allocate": devices,
                    "hami.io/vgpu-devices-allocated": devices,
                },
            },
            "none": {"fits": False, "reason": "node unregistered"},
        },
        "chosen": "big",
        "error": "",
    }


def test_what_placed_pods_hold_counts() -> None:
    given = answer(
        asking(gpus(1, 5000)),
        node("n", {}),
        pods=(placed_pod("GPU-n-0,NVIDIA,4000,0:;", on="n"),),
    )
    assert given["nodes"] == {"n": {"fits": False, "reason": "1/1 CardInsufficientMemory"}}
    assert given["chosen"] is None


def test_a_pod_without_a_card_passes_every_node() -> None:
    given = answer(asking({}), node("n", {}), node("none"))
    assert given["chosen"] == "unfiltered"
    assert given["nodes"] == {key: {"fits": True, "unfiltered": True} for key in ("n", "none")}


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        pytest.param(
            asking(gpus(1, 1), annotations={"hami.io/device-scoring-weights": "slot=0"}),
            "hami.io/device-scoring-weights is 'slot=0'",
            id="weights",
        ),
        pytest.param(asking(gpus(1, "16Gi")), "nvidia.com/gpumem is 16Gi", id="memory in bytes"),
        pytest.param(asking(gpus(1, "lots")), "nvidia.com/gpumem is lots", id="no quantity"),
    ],
)
def test_a_mistake_of_the_pod_is_reported_at_every_node_and_once_for_all(
    pod: Json, reason: str
) -> None:
    given = answer(pod, node("a", {}), node("b", {}))
    assert reason in given["error"]
    assert given["nodes"] == {key: {"fits": False, "error": given["error"]} for key in ("a", "b")}
    assert given["chosen"] is None


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        pytest.param({}, "the pod has no containers", id="empty"),
        pytest.param({"spec": {"containers": []}}, "the pod has no containers", id="none"),
        pytest.param(
            {"spec": {"containers": 3}}, "the pod: spec: containers is 3", id="containers a number"
        ),
        pytest.param({"metadata": 3}, "the pod: metadata is 3: expected an object", id="metadata"),
        pytest.param(
            {"spec": {"containers": [{"resources": {"limits": ["nvidia.com/gpu"]}}]}},
            "the pod: spec.containers[0]: resources: limits is ['nvidia.com/gpu']",
            id="limits a list",
        ),
    ],
)
def test_a_pod_that_is_none_is_reported_at_every_node(pod: Json, reason: str) -> None:
    given = answer(pod, node("n", {}))
    assert reason in given["error"]
    assert given["nodes"] == {"n": {"fits": False, "error": given["error"]}}


def test_the_name_of_a_case_is_kept_in_its_error() -> None:
    given = SIMULATOR.answer_line('{"name": "mine", "in": {"nodes": 3}}', 2)
    assert (given["name"], given["error"]) == (
        "mine",
        "line 2: in.nodes is 3: expected a list of objects",
    )


def test_a_pod_that_is_filtered_again_gives_back_what_it_held() -> None:
    before = placed_pod("GPU-n-0,NVIDIA,4000,0:;", on="n")
    before["metadata"]["uid"] = "u"
    given = answer(asking(gpus(1, 5000)), node("n", {}), pods=(before,))
    assert given["chosen"] == "n"


def test_cards_of_two_nodes_may_have_one_name() -> None:
    only = {"nvidia.com/use-gpuuuid": "GPU-0"}
    nodes = [node(name, {"id": "GPU-0"}, {"id": "GPU-1"}) for name in ("a", "b")]
    given = answer(asking(gpus(1, 5000), annotations=only), *nodes)
    assert [each["fits"] for each in given["nodes"].values()] == [True, True]


def test_a_node_that_lists_no_resource_at_all_is_believed() -> None:
    """HAMi looks at the count only once it has seen one (protocol 1.1, Health)."""
    silent, gone = node("silent", {}), node("gone", {}, allocatable=0)
    del silent["status"]
    given = answer(asking(gpus(1, 5000)), silent, gone)
    assert given["nodes"]["silent"]["fits"]
    assert given["nodes"]["gone"] == {"fits": False, "reason": "node unregistered"}


def test_entries_of_containers_without_a_card_are_left_out_as_hami_does() -> None:
    """TRAP-1: the node's cards have a product name as their type."""
    given = answer(asking({}, gpus(1, 1000), {}), node("n", {}))
    written = given["nodes"]["n"]["annotations"]["hami.io/vgpu-devices-allocated"]
    assert written == "GPU-n-0,NVIDIA,1000,0:;"


def test_entries_are_kept_where_the_cards_type_is_the_vendors_name() -> None:
    given = answer(asking({}, gpus(1, 1000), {}), node("n", {"type": "NVIDIA"}))
    written = given["nodes"]["n"]["annotations"]["hami.io/vgpu-devices-allocated"]
    assert written == ";GPU-n-0,NVIDIA,1000,0:;;"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param('{"name":', "not JSON", id="cut off"),
        pytest.param("[1]", "expected a case", id="a list"),
        pytest.param('{"name": "x"}', "expected a case", id="nothing in it"),
        pytest.param('{"in": {"nodes": 3, "pod": {}}}', "in.nodes is 3", id="nodes a number"),
        pytest.param('{"in": {"nodes": [3], "pod": {}}}', "in.nodes[0] is 3", id="node a number"),
        pytest.param('{"in": {"nodes": []}}', "in.pod is None", id="no pod"),
        pytest.param('{"in": {"nodes": [{}], "pod": {}}}', "metadata.name", id="nameless node"),
        pytest.param(
            '{"in": {"nodes": [{"metadata": {"name": "n"}, "status": 3}], "pod": {}}}',
            "node n: status is 3: expected an object",
            id="status a number",
        ),
        pytest.param(
            '{"in": {"pods": [{}, {"metadata": {"annotations": {"a": 1}}}], "pod": {}}}',
            "placed pod 1: metadata.annotations['a'] is 1: expected an object of texts",
            id="an annotation that is not text",
        ),
        pytest.param(
            '{"in": {"pods": [{"status": {"phase": {}}}], "pod": {}}}',
            "placed pod 0: status: phase is {}: expected a text",
            id="a phase that is not text",
        ),
        pytest.param("\ud800", "not JSON", id="no text"),
    ],
)
def test_a_line_that_cannot_be_read_is_answered_with_an_error(line: str, reason: str) -> None:
    given: dict[str, Any] = SIMULATOR.answer_line(line, 7)
    assert given["error"].startswith("line 7: ")
    assert reason in given["error"]
    assert (given["nodes"], given["chosen"]) == ({}, None)
