"""The pods for which an autoscaler makes nodes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hami_scheduler.ports.scaling import ScaleWish
from hami_scheduler.scaling.placeholders import nodes_before, placeholder, placeholder_name
from hamicommon.domain.requests import HostRequest
from hamicommon.k8s.types import Json
from hamicommon.scaling.node_types import NodeType, Taint

WISH = ScaleWish(
    id=7,
    type="a100x4",
    number=2,
    pods=(),
    host=HostRequest(cpu_milli=2500, memory_mib=4096),
    is_asked=False,
    reason="",
    wanted_at=datetime(2026, 11, 30, tzinfo=UTC),
    age_s=0.0,
)
KIND = NodeType(
    name="a100x4",
    labels={"pool": "a100", "zone": "a"},
    selector={"pool": "a100"},
    cards=(),
    taints=(Taint("nvidia.com/gpu", "present"),),
)


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("a100x4", "hami-scale-a100x4-3"),
        ("A100_x4", "hami-scale-a100-x4-"),
        ("a" * 63, f"hami-scale-{'a' * 40}-"),
        ("€", "hami-scale-"),
    ],
)
def test_a_name_is_the_types_and_the_number(kind: str, begins: str) -> None:
    name = placeholder_name(kind, 3)

    assert name.startswith(begins)
    assert name.endswith("-3")
    assert len(name) <= 63
    assert placeholder_name(kind + "b", 3) != name


def node(name: str, **labels: str) -> Json:
    """Build a node; in the names of labels, `__` is a slash and `_` a dot."""
    named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return {"metadata": {"name": name, "labels": named}}


def spec_of(*existing: Json) -> Json:
    return dict(placeholder(WISH, KIND, existing, image="i", secrets=[{"name": "s"}])["spec"])


def test_a_placeholder_asks_for_a_whole_node_of_its_type_and_for_no_card() -> None:
    spec = spec_of()

    assert spec["nodeSelector"] == {"pool": "a100"}
    assert spec["tolerations"] == [
        {
            "key": "nvidia.com/gpu",
            "operator": "Equal",
            "value": "present",
            "effect": "NoSchedule",
        }
    ]
    [container] = spec["containers"]
    assert container["resources"] == {"requests": {"cpu": "2500m", "memory": "4096Mi"}}
    keys = [
        term["labelSelector"]["matchExpressions"][0]["key"]
        for term in spec["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
    ]
    assert keys == ["hami.io/slice", "hami.io/placeholder"]
    assert "nodeAffinity" not in spec["affinity"]
    assert "schedulerName" not in spec


POOL = "karpenter_sh__nodepool"


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        pytest.param(
            [node("b"), node("z", kubernetes_io__hostname="a")],
            [("kubernetes.io/hostname", ["a", "b"])],
            id="host names",
        ),
        pytest.param(
            [
                node("n1", **{POOL: "p"}, kubernetes_io__hostname="h1"),
                node("n2", **{POOL: "p"}, hami_io__hostname="42"),
            ],
            [("hami.io/hostname", ["42", "h1"])],
            id="nodes of Karpenter by our label",
        ),
        pytest.param(
            [node("n1", **{POOL: "p"}), node("n2")],
            [("hami.io/hostname", ["n1"]), ("kubernetes.io/hostname", ["n2"])],
            id="both",
        ),
    ],
)
def test_a_placeholder_excludes_and_shows_the_nodes_that_are_there(
    existing: list[Json], expected: list[tuple[str, list[str]]]
) -> None:
    pod = placeholder(WISH, KIND, existing, image="i")

    [term] = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term == {
        "matchExpressions": [
            {"key": key, "operator": "NotIn", "values": values} for key, values in expected
        ]
    }
    assert nodes_before(pod) == {name for _, names in expected for name in names}


@pytest.mark.parametrize(
    "pod", [placeholder(WISH, KIND, (), image="i"), {"spec": {"containers": []}}]
)
def test_a_placeholder_without_nodes_before_it_shows_none(pod: Json) -> None:
    assert nodes_before(pod) == frozenset()
