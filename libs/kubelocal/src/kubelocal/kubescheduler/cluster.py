"""Nodes with the resources that their pods occupy, and checks whether a pod fits.

A pod counts on its node from the moment it is assumed there, before its binding is even sent.

The filters are kube-scheduler's own, with its reasons and in its order; the first that refuses ends
the matter, only the resource filter gives several reasons. What the extenders refuse comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hamicommon.k8s.types import Json

from kubelocal import pod_resources
from kubelocal.pod_resources import CPU, MEMORY, PODS, pod_requests

# What kube-scheduler counts for a container without requests when it scores (not when it filters).
_DEFAULT_CPU_MILLI = 100
_DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Node:
    """Node object with its capacity and occupied amounts."""

    name: str
    item: Json
    allocatable: dict[str, int]
    taken: dict[str, int] = field(default_factory=dict)
    taken_for_score: dict[str, int] = field(default_factory=dict)
    pods: int = 0

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the node."""
        labels: Mapping[str, str] = self.item["metadata"].get("labels") or {}
        return labels

    @property
    def spec(self) -> Mapping[str, Any]:
        """Spec of the node."""
        spec: Mapping[str, Any] = self.item.get("spec") or {}
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """Node of a pod, and the amounts that it occupies there."""

    node: str
    requests: Mapping[str, int]
    for_score: Mapping[str, int]


class KnownCluster:
    """Present state of the cluster; nodes are kept in the order in which they appeared."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._placed: dict[str, BoundPod] = {}
        self._assumed: set[str] = set()

    def nodes(self) -> list[Node]:
        """All existing nodes."""
        return list(self._nodes.values())

    def set_node(self, item: Json) -> None:
        """Store a new or changed node."""
        name = item["metadata"]["name"]
        room = pod_resources.amounts((item.get("status") or {}).get("allocatable"))
        node = self._nodes.get(name)
        if node is not None:
            node.item, node.allocatable = item, room
            return
        self._nodes[name] = node = Node(name=name, item=item, allocatable=room)
        for placed in self._placed.values():
            if placed.node == name:
                _count(node, placed, 1)

    def remove_node(self, name: str) -> None:
        """Remove a node; if it returns, its pods count again."""
        self._nodes.pop(name, None)

    def assume(self, pod: Json, node: str) -> None:
        """Count the pod on the node before it is bound."""
        self._place(pod, node)
        self._assumed.add(pod["metadata"]["uid"])

    def set_pod(self, pod: Json) -> None:
        """Set the pod's node as the API server reports it."""
        self._assumed.discard(pod["metadata"]["uid"])
        self._place(pod, pod["spec"]["nodeName"])

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that ended, was deleted, or could not be bound."""
        self._assumed.discard(uid)
        placed = self._placed.pop(uid, None)
        if placed is not None and placed.node in self._nodes:
            _count(self._nodes[placed.node], placed, -1)

    def is_assumed(self, uid: str) -> bool:
        """Return whether the pod was assumed on a node and is not yet seen as bound."""
        return uid in self._assumed

    def _place(self, pod: Json, node: str) -> None:
        uid = pod["metadata"]["uid"]
        requests = pod_resources.pod_requests(pod["spec"])
        placed = BoundPod(node=node, requests=requests, for_score=score_requests(pod["spec"]))
        if self._placed.get(uid) == placed:
            return
        assumed = uid in self._assumed
        self.remove_pod(uid)
        if assumed:
            self._assumed.add(uid)
        self._placed[uid] = placed
        if node in self._nodes:
            _count(self._nodes[node], placed, 1)


def score_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return CPU and memory for scoring, in which every container takes at least something."""
    total = {pod_resources.CPU: 0, pod_resources.MEMORY: 0}
    for container in spec.get("containers") or ():
        own = pod_resources.amounts((container.get("resources") or {}).get("requests"))
        total[pod_resources.CPU] += own.get(pod_resources.CPU, _DEFAULT_CPU_MILLI)
        total[pod_resources.MEMORY] += own.get(pod_resources.MEMORY, _DEFAULT_MEMORY_BYTES)
    return total


def _count(node: Node, placed: BoundPod, sign: int) -> None:
    node.taken = pod_resources.add(node.taken, placed.requests, sign)
    node.taken_for_score = pod_resources.add(node.taken_for_score, placed.for_score, sign)
    node.pods += sign


_UNSCHEDULABLE_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_REFUSING_EFFECTS = ("NoSchedule", "NoExecute")
_FIRST = {CPU: "", MEMORY: "\0", "ephemeral-storage": "\1"}


def why_unfit(pod: Json, node: Node, *, ignored: frozenset[str]) -> tuple[str, ...]:
    """Return why the pod can't run on the node; empty if it can.

    `ignored` are resources that an extender decides (`ignoredByScheduler`).
    """
    spec = pod["spec"]
    for refuse in (_unschedulable, _other_name, _taint, _affinity):
        reason = refuse(spec, node)
        if reason:
            return (reason,)
    return _resources(spec, node, ignored)


def untolerated_preferences(pod: Json, node: Node) -> int:
    """Return the number of PreferNoSchedule taints of the node that the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or ()
    return sum(
        taint.get("effect") == "PreferNoSchedule" and not is_tolerated(taint, tolerations)
        for taint in node.spec.get("taints") or ()
    )


def is_tolerated(taint: Mapping[str, str], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of the tolerations matches this taint."""
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


def is_selected(node: Node, terms: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of the node selector terms matches; an empty term matches nothing."""
    return any(_term(node, term) for term in terms)


def _unschedulable(spec: Json, node: Node) -> str | None:
    if node.spec.get("unschedulable") and not is_tolerated(
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
        if taint["effect"] in _REFUSING_EFFECTS and not is_tolerated(taint, tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    return None


def _affinity(spec: Json, node: Node) -> str | None:
    selector = spec.get("nodeSelector") or {}
    fits = all(node.labels.get(key) == value for key, value in selector.items())
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None:
        fits = fits and is_selected(node, required.get("nodeSelectorTerms") or ())
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


def _compare(value: str | None, values: list[str], sign: int) -> bool:
    try:
        return value is not None and sign * (int(value) - int(values[0])) > 0
    except (ValueError, IndexError):
        return False


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, values: _compare(value, values, 1),
    "Lt": lambda value, values: _compare(value, values, -1),
}
