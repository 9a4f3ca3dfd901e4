"""Which nodes are planned for which pods."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.scaling.node_types import TypeEntry, read_types
from hamicommon.scaling.planner import ScalePlan, plan_nodes

from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node, placed_pod

FILE = """
- {name: a100x4, selector: {pool: a100}, max: 6, price: 12.0, cpu: 96, memory: 700Gi,
   cards: [{count: 4, type: NVIDIA A100-SXM4-80GB, memory: 81920}]}
"""


def pod(name: str, memory: int = 8000, *, count: int = 1, **spec: Any) -> Json:
    cpu, age, phase = spec.pop("cpu", None), spec.pop("age", None), spec.pop("phase", "Pending")
    made = asking(gpus(count, memory))
    made["metadata"] |= {"name": name, "uid": name, "creationTimestamp": age}
    made["spec"] |= spec
    made["status"] = {"phase": phase}
    if cpu:
        made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return made


def entry(name: str, *memories: int, **fields: Any) -> TypeEntry:
    cards = [{"count": 1, "type": "NVIDIA A10", "memory": memory} for memory in memories]
    return TypeEntry.model_validate({"name": name, "cards": cards, **fields})


def plan(
    *pods: Json, nodes: tuple[Json, ...] = (), types: tuple[TypeEntry, ...] = (), **more: Any
) -> ScalePlan:
    return plan_nodes(nodes, pods, more.pop("new", ()), types, every_vendor(), **more)


def member(name: str, group: str = "g", **fields: Any) -> Json:
    """A node of a node pool with one card of 8000 MiB."""
    made = node(name, {})
    made["metadata"]["labels"] = {"agentpool": group, "kubernetes.io/hostname": name}
    made["spec"] = fields.pop("spec", {})
    made["status"]["allocatable"] |= fields
    return made


def test_nodes_of_a_file_are_planned_and_what_fits_none_is_named() -> None:
    pods = [pod(f"p{each}", 40000) for each in range(9)]
    pods += [pod(f"large{each}", 102400) for each in range(3)]

    found = plan(*pods, types=tuple(read_types(FILE, "types.yaml")))

    assert list(found.sentences()) == [
        "2 nodes of a100x4 for 9 pods (default/p0, default/p1, default/p2, default/p3, "
        "default/p4 and 4 more)",
        "3 pods (default/large0, default/large1, default/large2) fit no type: no card of 4 on "
        "1 node has 102400 MiB: the largest has 81920 MiB; ask for less",
    ]
    assert [(each["type"], each["count"], each["price"]) for each in found.as_json()["nodes"]] == [
        ("a100x4", 2, 24.0)
    ]


def test_pods_take_what_is_free_by_priority_and_age_and_new_ones_last() -> None:
    held = placed_pod("GPU-n-0,NVIDIA,4000,0:;", on="n")
    young = pod("young", 4000, age="2026-01-02T00:00:00Z")
    old = pod("old", 4000, age="2026-01-01T00:00:00Z")
    urgent = pod("urgent", 4000, age="2026-01-03T00:00:00Z", priority=7)
    types = (entry("t", 8000),)

    def existing(*pods: Json, new: tuple[Json, ...] = ()) -> list[str]:
        found = plan(held, *pods, nodes=(node("n", {}),), types=types, new=new)
        assert len(found.placed) == len(pods) + len(new)
        return [name for name, where in found.placed.items() if where == "n"]

    assert existing(young, old) == ["default/old"]
    assert existing(young, old, urgent) == ["default/urgent"]
    assert existing(young, new=(pod("new", 4000),)) == ["default/young"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("p", phase="Running", nodeName="n"), id="on a node"),
        pytest.param(pod("p", phase="Succeeded"), id="ended"),
        pytest.param(pod("p", schedulingGates=[{"name": "g"}]), id="gated"),
        pytest.param(asking({}), id="without cards"),
    ],
)
def test_pods_that_wait_for_no_card_need_no_node(other: Json) -> None:
    found = plan(other, types=(entry("t", 8000),))
    assert list(found.sentences()) == ["No pod waits for a card."]


@pytest.mark.parametrize(
    ("prices", "chosen"),
    [((1.0, 2.5), "one"), ((1.0, 1.5), "two"), ((1.0, 2.0), "one")],
    ids=["dearer per pod", "cheaper per pod", "equal, by name"],
)
def test_the_type_with_the_least_price_per_pod_that_fits_is_opened(
    prices: tuple[float, float], chosen: str
) -> None:
    types = (entry("two", 8000, 8000, price=prices[1]), entry("one", 8000, price=prices[0]))
    found = plan(pod("a"), pod("b"), types=types)
    assert {kind.name for kind in found.opened.values()} == {chosen}
    assert not found.refused


@pytest.mark.parametrize(
    ("wish", "types", "why"),
    [
        pytest.param(pod("p"), (), "no node type is known", id="no type"),
        pytest.param(pod("p"), (entry("t", 8000, max=0),), "t is at its max of 0 nodes", id="max"),
        pytest.param(
            pod("p", nodeSelector={"zone": "a"}),
            (entry("t", 8000), entry("u", 4000)),
            "t does not have the labels of its nodeSelector (zone=a)",
            id="selector",
        ),
        pytest.param(
            pod("p", cpu="9"),
            (entry("t", 8000, cpu=8, memory="1Gi"),),
            "t has 8 CPU and the pod wants 9",
            id="CPU",
        ),
        pytest.param(pod("p", count=2), (entry("t", 8000),), "ask for fewer cards", id="cards"),
        pytest.param(
            asking({"nvidia.com/gpu": "x"}), (entry("t", 8000),), "gpu is x", id="a malformed pod"
        ),
    ],
)
def test_a_pod_that_no_node_could_take_opens_none_and_has_the_reason(
    wish: Json, types: tuple[TypeEntry, ...], why: str
) -> None:
    found = plan(wish, types=types)
    assert not found.opened
    [(reason, pods)] = found.refused.items()
    assert why in reason
    assert len(pods) == 1


def test_a_group_of_nodes_is_a_type_with_the_cards_that_it_registered() -> None:
    sick, closed = member("a"), member("b", spec={"unschedulable": True})
    sick["metadata"]["annotations"]["hami.io/node-nvidia-register"] = sick["metadata"][
        "annotations"
    ]["hami.io/node-nvidia-register"].replace('"health": true', '"health": false')
    pods = [pod("x", nodeSelector={"agentpool": "g"}), pod("y")]
    pinned = pod("z", nodeSelector={"kubernetes.io/hostname": "a"})

    found = plan(*pods, pinned, nodes=(sick, closed))

    assert found.placed == {"default/x": "g/1", "default/y": "g/2"}
    assert list(found.refused.values()) == [["default/z"]]
    bounded = TypeEntry.model_validate({"name": "g", "max": 3, "price": 5})
    assert len(plan(*pods, nodes=(sick, closed), types=(bounded,)).opened) == 1
    other = plan(*pods, nodes=(sick, closed), group_labels=("pool",))
    assert not other.opened


def test_cpu_of_pods_on_a_node_and_of_daemons_on_a_new_one_is_spent() -> None:
    busy = pod("busy", 0, phase="Running", nodeName="a", cpu="3")
    daemon = pod("daemon", 0, phase="Running", nodeName="a", cpu="1")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet"}]
    for each in (busy, daemon):
        each["spec"]["containers"][0]["resources"].pop("limits")
    waiting = [pod(name, 1000, cpu="2") for name in "xyz"]

    found = plan(busy, daemon, *waiting, nodes=(member("a", cpu="5"),))

    assert list(found.placed.values()) == ["g/1", "g/1", "g/2"]


TAINT: Json = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ([], False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], True),
        ([{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}], True),
        ([{"key": "nvidia.com/gpu", "value": "no"}], False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"operator": "Exists"}], True),
        ([{"key": "other", "operator": "Exists"}], False),
    ],
)
def test_only_pods_that_tolerate_a_nodes_taints_go_there(
    tolerations: list[Json], fits: bool
) -> None:
    """On a node that is there, one of its group, and one of the file."""
    wish = [pod(name, tolerations=tolerations) for name in "ab"]
    tainted = member("n", spec={"taints": [TAINT]})
    described = entry("t", 8000, taints=[TAINT])

    found = plan(*wish, nodes=(tainted,))

    assert found.placed == ({"default/a": "n", "default/b": "g/1"} if fits else {})
    assert bool(plan(*wish, types=(described,)).opened) is fits


def test_taints_of_a_moment_are_not_the_pools() -> None:
    leaving = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}

    found = plan(pod("a"), nodes=(member("n", spec={"taints": [leaving]}),))

    assert found.placed == {"default/a": "g/1"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "types.yaml is not YAML"),
        ("a: 1", "types.yaml: the document: Input should be a valid list"),
        ("[{name: t, cadrs: []}]", "types.yaml: 0.cadrs: Extra inputs are not permitted"),
        ("[{name: t, price: 0}]", "types.yaml: 0.price: Input should be greater than 0"),
        ("[{name: t}, {name: t}]", "types.yaml names a type twice: t, t"),
        ("[{name: t}]", "node type t has no cards, and no group of nodes has its name"),
        ("[{name: t, cpu: x, cards: [{count: 1, type: A, memory: 1}]}]", "node type t: "),
        (
            "[{name: t, cards: [{count: 1, type: A, memory: 1, vendor: ATI}]}]",
            "node type t: vendor ATI is not served",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        plan(types=tuple(read_types(text, "types.yaml")))
    assert str(raised.value).startswith(why)
