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


def spec_of(*existing: str) -> Json:
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


def test_a_placeholder_goes_to_no_node_that_is_there() -> None:
    [term] = spec_of("b", "a")["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]

    assert term == {
        "matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
        ]
    }


@pytest.mark.parametrize("existing", [(), ("n1",), ("n2", "n1")])
def test_a_placeholder_shows_which_nodes_were_there_before(existing: tuple[str, ...]) -> None:
    assert nodes_before(placeholder(WISH, KIND, existing, image="i")) == set(existing)


def test_a_placeholder_of_somebody_else_shows_no_node() -> None:
    assert nodes_before({"spec": {"containers": []}}) == frozenset()
