"""Nodes, and what the pods on them occupy, as the loop last saw or assumed it.

A pod counts on its node from the moment it is assumed there, before its binding is even sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hamicommon.k8s.types import Json

from kubelocal import pod_resources

# What kube-scheduler counts for a container without requests when it scores (not when it filters).
_DEFAULT_CPU_MILLI = 100
_DEFAULT_MEMORY_BYTES = 200 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Node:
    """One node: the object, its parsed room, and what is taken of it."""

    name: str
    item: Json
    allocatable: dict[str, int]
    taken: dict[str, int] = field(default_factory=dict)
    taken_for_score: dict[str, int] = field(default_factory=dict)
    pods: int = 0

    @property
    def labels(self) -> Mapping[str, str]:
        """The node's labels."""
        labels: Mapping[str, str] = self.item["metadata"].get("labels") or {}
        return labels

    @property
    def spec(self) -> Mapping[str, Any]:
        """The node's spec."""
        spec: Mapping[str, Any] = self.item.get("spec") or {}
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPod:
    """A pod's place and what it takes there."""

    node: str
    requests: Mapping[str, int]
    for_score: Mapping[str, int]


class KnownCluster:
    """The live picture; nodes keep the order in which they were first seen."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._placed: dict[str, PlacedPod] = {}
        self._assumed: set[str] = set()

    def nodes(self) -> list[Node]:
        """All nodes that exist."""
        return list(self._nodes.values())

    def set_node(self, item: Json) -> None:
        """A node was added or changed."""
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
        """A node is gone; its pods count again should it come back."""
        self._nodes.pop(name, None)

    def assume(self, pod: Json, node: str) -> None:
        """We are about to bind the pod there."""
        self._place(pod, node)
        self._assumed.add(pod["metadata"]["uid"])

    def set_pod(self, pod: Json) -> None:
        """The pod's node according to the API server."""
        self._assumed.discard(pod["metadata"]["uid"])
        self._place(pod, pod["spec"]["nodeName"])

    def remove_pod(self, uid: str) -> None:
        """The pod ended, is gone, or is not bound after all."""
        self._assumed.discard(uid)
        placed = self._placed.pop(uid, None)
        if placed is not None and placed.node in self._nodes:
            _count(self._nodes[placed.node], placed, -1)

    def is_assumed(self, uid: str) -> bool:
        """Whether we placed the pod and have not seen it bound yet."""
        return uid in self._assumed

    def _place(self, pod: Json, node: str) -> None:
        uid = pod["metadata"]["uid"]
        requests = pod_resources.pod_requests(pod["spec"])
        placed = PlacedPod(node=node, requests=requests, for_score=score_requests(pod["spec"]))
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
    """cpu and memory as kube-scheduler scores them: every container takes something."""
    total = {pod_resources.CPU: 0, pod_resources.MEMORY: 0}
    for container in spec.get("containers") or ():
        own = pod_resources.amounts((container.get("resources") or {}).get("requests"))
        total[pod_resources.CPU] += own.get(pod_resources.CPU, _DEFAULT_CPU_MILLI)
        total[pod_resources.MEMORY] += own.get(pod_resources.MEMORY, _DEFAULT_MEMORY_BYTES)
    return total


def _count(node: Node, placed: PlacedPod, sign: int) -> None:
    node.taken = pod_resources.add(node.taken, placed.requests, sign)
    node.taken_for_score = pod_resources.add(node.taken_for_score, placed.for_score, sign)
    node.pods += sign
