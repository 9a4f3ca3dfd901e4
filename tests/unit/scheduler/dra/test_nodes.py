"""Where a pod with claims may go, by its own rules and the node's."""

from __future__ import annotations

from typing import Any

import pytest
from hami_scheduler.dra.nodes import admits, led_nodes
from hamicommon.dra.devices import LEDGER_TAINT
from hamicommon.k8s.types import Json


def node(labels: dict[str, str] | None = None, **spec: Any) -> Json:
    return {"metadata": {"name": "n1", "labels": labels or {}}, "spec": spec}


def taint(key: str = "k", effect: str = "NoSchedule", value: str = "") -> Json:
    return {"key": key, "effect": effect, "value": value}


def affinity(*terms: Json) -> Json:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def rule(operator: str, *values: str, key: str = "zone") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


def terms(*rules: Json) -> Json:
    return {"affinity": affinity({"matchExpressions": list(rules)})}


IN_A = {"zone": "a", "rank": "5"}


@pytest.mark.parametrize(
    ("there", "spec", "goes"),
    [
        (node(), {}, True),
        (node(unschedulable=True), {}, False),
        (node(unschedulable=True), {"tolerations": [{"operator": "Exists"}]}, True),
        (node(taints=[taint()]), {}, False),
        (node(taints=[taint(effect="NoExecute")]), {}, False),
        (node(taints=[taint(effect="PreferNoSchedule")]), {}, True),
        (node(taints=[taint()]), {"tolerations": [{"key": "k", "operator": "Exists"}]}, True),
        (node(taints=[taint()]), {"tolerations": [{"key": "j", "operator": "Exists"}]}, False),
        (node(taints=[taint(value="v")]), {"tolerations": [{"key": "k", "value": "v"}]}, True),
        (node(taints=[taint(value="v")]), {"tolerations": [{"key": "k", "value": "w"}]}, False),
        (
            node(taints=[taint(effect="NoExecute")]),
            {"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]},
            False,
        ),
        (node(IN_A), {"nodeSelector": {"zone": "a"}}, True),
        (node(IN_A), {"nodeSelector": {"zone": "b"}}, False),
        (node(), {"nodeSelector": {"zone": "a"}}, False),
        (node(IN_A), terms(rule("In", "a", "b")), True),
        (node(IN_A), terms(rule("NotIn", "a")), False),
        (node(), terms(rule("NotIn", "a")), True),
        (node(IN_A), terms(rule("Exists"), rule("DoesNotExist", key="x")), True),
        (node(IN_A), terms(rule("Gt", "4", key="rank")), True),
        (node(IN_A), terms(rule("Lt", "4", key="rank")), False),
        (node(IN_A), terms(rule("Gt", "4")), False),
        (node(IN_A), {"affinity": affinity({}, {"matchExpressions": [rule("Exists")]})}, True),
        (node(), {"affinity": affinity({})}, False),
        (
            node(),
            {"affinity": affinity({"matchFields": [rule("In", "n1", key="metadata.name")]})},
            True,
        ),
        (node(), {"affinity": {"nodeAffinity": {}}}, True),
    ],
)
def test_a_pod_goes_where_it_is_let_in(there: Json, spec: Json, goes: bool) -> None:
    assert admits(there, {"spec": spec}) is goes


def a_slice(name: str, *taints: str) -> Json:
    device = {"name": "gpu-1", "taints": [{"key": key} for key in taints]}
    return {"spec": {"nodeName": name, "pool": {"name": f"pool-{name}"}, "devices": [device]}}


def test_cards_are_led_where_they_have_the_ledger_s_taint() -> None:
    slices = [a_slice("n1", LEDGER_TAINT), a_slice("n2", "gpu.hami.io/unhealthy"), a_slice("n3")]
    nowhere = {"spec": {"pool": {"name": "p"}, "allNodes": True}}
    assert led_nodes([*slices, nowhere]) == {"n1": "pool-n1"}
