"""Compute the free CPU of nodes: allocatable minus the requests of their pods.

kube-scheduler grants it; the node policy `fragmentation` looks at it, because a card is of no use
on a node whose CPU is spent. Nodes and pods come from the informers that are there anyway.
"""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_milli
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import host_request

from hami_scheduler.ledger.state_machine import TERMINAL_PHASES


class HostCpu:
    """Handlers of the pod and node informers; `publish` gets a node's free CPU in thousandths.

    None is published for a node whose allocatable CPU is not known.
    """

    def __init__(self, publish: Callable[[NodeName, int | None], None]) -> None:
        self._publish = publish
        self._allocatable: dict[NodeName, int] = {}
        self._asked: dict[NodeName, int] = {}
        self._pods: dict[str, tuple[NodeName, int]] = {}

    def node_seen(self, node: Json) -> None:
        """Handle a new or changed node."""
        name = NodeName(node["metadata"]["name"])
        given = ((node.get("status") or {}).get("allocatable") or {}).get("cpu")
        try:
            if given is None:
                self._allocatable.pop(name, None)
            else:
                self._allocatable[name] = parse_milli(given)
        except InvalidRequest:
            self._allocatable.pop(name, None)
        self._publish_free(name)

    def node_gone(self, node: Json) -> None:
        """Handle a deleted node."""
        name = NodeName(node["metadata"]["name"])
        if self._allocatable.pop(name, None) is not None:
            self._publish_free(name)

    def pod_seen(self, pod: Json) -> None:
        """Handle a new or changed pod."""
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or (pod.get("status") or {}).get("phase") in TERMINAL_PHASES:
            self.pod_gone(pod)
            return
        uid, cpu = pod["metadata"]["uid"], host_request(pod).cpu_milli
        if self._pods.get(uid) != (node, cpu):
            self.pod_gone(pod)
            self._pods[uid] = (NodeName(node), cpu)
            self._add(NodeName(node), cpu)

    def pod_gone(self, pod: Json) -> None:
        """Handle an ended or deleted pod."""
        held = self._pods.pop(pod["metadata"]["uid"], None)
        if held is not None:
            self._add(held[0], -held[1])

    def _add(self, node: NodeName, cpu_milli: int) -> None:
        left = self._asked.get(node, 0) + cpu_milli
        if left:
            self._asked[node] = left
        else:
            self._asked.pop(node, None)
        self._publish_free(node)

    def _publish_free(self, node: NodeName) -> None:
        allocatable = self._allocatable.get(node)
        free = None if allocatable is None else allocatable - self._asked.get(node, 0)
        self._publish(node, free)
