"""Does a pod fit a node? kube-scheduler's own filters, with its own reasons. Pure.

The filters run in kube-scheduler's order and the first that refuses ends the matter; only the
resource filter gives several reasons. What the extenders refuse comes later.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hamicommon.k8s.types import Json

from kubelocal.kubescheduler.cluster import Node
from kubelocal.pod_resources import CPU, MEMORY, PODS, pod_requests

_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_REFUSING_EFFECTS = ("NoSchedule", "NoExecute")
_FIRST = {CPU: "", MEMORY: "\0", "ephemeral-storage": "\1"}


def why_unfit(pod: Json, node: Node, *, ignored: frozenset[str]) -> tuple[str, ...]:
    """Why the pod cannot run on the node; empty if it can.

    `ignored` are resources that an extender decides (`ignoredByScheduler`).
    """
    spec = pod["spec"]
    for refuse in (_unschedulable, _other_name, _taint, _affinity):
        reason = refuse(spec, node)
        if reason:
            return (reason,)
    return _resources(spec, node, ignored)


def untolerated_preferences(pod: Json, node: Node) -> int:
    """How many PreferNoSchedule taints of the node the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or ()
    return sum(
        taint.get("effect") == "PreferNoSchedule" and not tolerated(taint, tolerations)
        for taint in node.spec.get("taints") or ()
    )


def tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of the tolerations is for this taint."""
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and _key_tolerated(taint, toleration)
        for toleration in tolerations
    )


def _key_tolerated(taint: Mapping[str, str], toleration: Mapping[str, Any]) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if key and key != taint["key"]:
        return False
    if operator == "Exists":
        return True
    return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")


def selected(node: Node, terms: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of the node selector terms matches; an empty term matches nothing."""
    return any(_term(node, term) for term in terms)


def _unschedulable(spec: Json, node: Node) -> str | None:
    if node.spec.get("unschedulable") and not tolerated(
        _UNSCHEDULABLE_TAINT, spec.get("tolerations") or ()
    ):
        return "node(s) were unschedulable"
    return None


def _other_name(spec: Json, node: Node) -> str | None:
    if spec.get("nodeName") and spec["nodeName"] != node.name:
        return "node(s) didn't match the requested node name"
    return None


def _taint(spec: Json, node: Node) -> str | None:
    tolerations = spec.get("tolerations") or ()
    for taint in node.spec.get("taints") or ():
        if taint["effect"] in _REFUSING_EFFECTS and not tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return None


def _affinity(spec: Json, node: Node) -> str | None:
    selector = spec.get("nodeSelector") or {}
    fits = all(node.labels.get(key) == value for key, value in selector.items())
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None:
        fits = fits and selected(node, required.get("nodeSelectorTerms") or ())
    return None if fits else "node(s) didn't match Pod's node affinity/selector"


def _resources(spec: Json, node: Node, ignored: frozenset[str]) -> tuple[str, ...]:
    reasons = []
    if node.pods + 1 > node.allocatable.get(PODS, 0):
        reasons.append("Too many pods")
    wanted = pod_requests(spec)
    for name in sorted(wanted, key=lambda name: (_FIRST.get(name, "\2"), name)):
        free = node.allocatable.get(name, 0) - node.taken.get(name, 0)
        if wanted[name] > 0 and name not in ignored and wanted[name] > free:
            reasons.append(f"Insufficient {name}")
    return tuple(reasons)


def _term(node: Node, term: Mapping[str, Any]) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_expression(node.labels, one) for one in expressions) and all(
        _expression({"metadata.name": node.name}, one) for one in fields
    )


def _expression(labels: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    value = labels.get(expression["key"])
    return _OPERATORS[expression["operator"]](value, expression.get("values") or [])


def _compared(value: str | None, values: list[str], sign: int) -> bool:
    try:
        return value is not None and sign * (int(value) - int(values[0])) > 0
    except (ValueError, IndexError):
        return False


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compared(value, values, 1),
    "Lt": lambda value, values: _compared(value, values, -1),
}
