"""Pods that are about to be created, one after the other."""

from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import read_cluster
from hamicommon.simulation.planner import plan

from tests.unit.hamicommon.simulation.objects import NOW, asking, every_vendor, gpus, node


def plan_pods(*pods: Json, nodes: tuple[Json, ...]) -> list[Json]:
    cluster = read_cluster(nodes, [], every_vendor())
    return [answer.as_json() for answer in plan(pods, cluster, every_vendor(), now=NOW)]


def test_each_pod_finds_what_the_ones_before_it_took() -> None:
    three = [asking(gpus(1, 3000)) for _ in range(3)]
    answers = plan_pods(*three, nodes=(node("n", {}),))
    assert [answer["chosen"] for answer in answers] == ["n", "n", None]
    assert answers[2]["nodes"]["n"]["reason"] == "1/1 CardInsufficientMemory"


def test_admission_fills_in_what_the_pod_leaves_open() -> None:
    """Only memory means one card; only a count of 1 means a whole card (protocol 1.1)."""
    memory_only, whole = plan_pods(
        asking({"nvidia.com/gpumem": 1000}), asking(gpus(1)), nodes=(node("n", {}, {}),)
    )
    key = "hami.io/vgpu-devices-allocated"
    assert memory_only["nodes"]["n"]["annotations"][key] == "GPU-n-1,NVIDIA,1000,0:;"
    assert whole["nodes"]["n"]["annotations"][key] == "GPU-n-0,NVIDIA,8000,100:;"


def test_what_admission_denies_is_the_answer() -> None:
    [answer] = plan_pods(
        asking({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 150}), nodes=(node("n", {}),)
    )
    assert answer["error"].startswith("denied at admission: container 'c0'")
    assert answer["chosen"] is None


def test_our_annotations_have_an_entry_for_every_container() -> None:
    [answer] = plan_pods(asking({}, gpus(1, 1000)), nodes=(node("n", {}),))
    written = answer["nodes"]["n"]["annotations"]["hami.io/vgpu-devices-allocated"]
    assert written == ";GPU-n-0,NVIDIA,1000,0:;"


def test_the_given_pod_is_left_as_it_is() -> None:
    pod = asking({"nvidia.com/gpumem": 1000})
    plan_pods(pod, nodes=(node("n", {}),))
    assert pod == asking({"nvidia.com/gpumem": 1000})
