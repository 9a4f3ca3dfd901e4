"""Which nodes a pod with claims may be placed on. Pure.

kube-scheduler decides in the end: what is looked at here (cordons, taints, node selectors, required
affinity) only keeps cards from being taken on nodes where the pod can't go. Source: v1.PodSpec,
"nodeSelector", "affinity.nodeAffinity", "tolerations".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamicommon.dra.devices import LEDGER_TAINT
from hamicommon.k8s.types import JsonMapping

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})


def led_nodes(slices: Iterable[JsonMapping]) -> dict[str, str]:
    """Nodes whose cards the ledger allocates to claims, each with the name of its pool."""
    return {
        str(spec["nodeName"]): str(spec["pool"]["name"])
        for spec in (each["spec"] for each in slices)
        if spec.get("nodeName") and any(map(_is_led, spec.get("devices") or ()))
    }


def _is_led(device: JsonMapping) -> bool:
    return any(taint["key"] == LEDGER_TAINT for taint in device.get("taints") or ())


def admits(node: JsonMapping, pod: JsonMapping) -> bool:
    """Whether the pod's own rules and the node's taints let it go there."""
    spec = pod.get("spec") or {}
    labels = node["metadata"].get("labels") or {}
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return _tolerated(node, spec.get("tolerations") or ()) and _in_affinity(node, spec)


def _tolerated(node: JsonMapping, tolerations: Sequence[Mapping[str, Any]]) -> bool:
    own = node.get("spec") or {}
    taints = [*(own.get("taints") or ()), *([_UNSCHEDULABLE] if own.get("unschedulable") else [])]
    return all(
        any(_tolerates(each, taint) for each in tolerations)
        for taint in taints
        if taint.get("effect") in _KEEPS_OUT
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key = toleration.get("key") or ""
    if toleration.get("operator") == "Exists":
        return key in ("", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == taint.get("value", ""))


def _in_affinity(node: JsonMapping, spec: Mapping[str, Any]) -> bool:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    metadata = node["metadata"]
    labels, fields = metadata.get("labels") or {}, {"metadata.name": metadata["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_matches(each, labels) for each in term.get("matchExpressions") or ())
        and all(_matches(each, fields) for each in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )


def _matches(rule: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    value, among = values.get(rule["key"]), rule.get("values") or ()
    match rule["operator"]:
        case "In":
            return value in among
        case "NotIn":
            return value not in among
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(value, among, greater=rule["operator"] == "Gt")
    # An operator of a later Kubernetes: kube-scheduler judges it.
    return True


def _compares(value: str | None, among: Sequence[str], *, greater: bool) -> bool:
    try:
        left, right = int(value or ""), int(among[0])
    except (ValueError, IndexError):
        return False
    return left > right if greater else left < right
