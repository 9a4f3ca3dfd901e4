"""How good is a node for a pod, 0..100 and the extenders' scores on top? Pure.

Least allocated (free share of cpu and memory), preferred node affinity and avoided taints, each
0..100 as in kube-scheduler; then the sum of the extenders' scores.
"""

from collections.abc import Mapping, Sequence

from hamicommon.k8s.types import Json

from kubelocal.kubescheduler.cluster import Node, score_requests
from kubelocal.kubescheduler.filters import selected, untolerated_preferences
from kubelocal.pod_resources import CPU, MEMORY

MAX_SCORE = 100
MAX_EXTENDER_SCORE = 10
_MIN_NODES = 100  # below this kube-scheduler looks at all nodes
_MIN_PERCENTAGE = 5


def scores(pod: Json, nodes: Sequence[Node]) -> dict[str, int]:
    """By node name, higher is better; the weights are kube-scheduler's defaults, all 1."""
    wanted = score_requests(pod["spec"])
    affinity = _normalised({node.name: _preference(pod, node) for node in nodes})
    avoided = _normalised({node.name: untolerated_preferences(pod, node) for node in nodes})
    return {
        node.name: least_allocated(wanted, node)
        + affinity[node.name]
        + MAX_SCORE
        - avoided[node.name]
        for node in nodes
    }


def least_allocated(wanted: Mapping[str, int], node: Node) -> int:
    """((room - taken - wanted) x 100 / room), the mean over cpu and memory."""
    total = 0
    for name in (CPU, MEMORY):
        room = node.allocatable.get(name, 0)
        left = room - node.taken_for_score.get(name, 0) - wanted[name]
        if room > 0 and left > 0:
            total += left * MAX_SCORE // room
    return total // 2


def with_extender(own: Mapping[str, int], theirs: Mapping[str, int], weight: int) -> dict[str, int]:
    """Add an extender's scores (0..10 by its contract), scaled to ours and weighted."""
    factor = weight * MAX_SCORE // MAX_EXTENDER_SCORE
    return {name: score + theirs.get(name, 0) * factor for name, score in own.items()}


def best(totals: Mapping[str, int]) -> str:
    """The highest score; among equals the first in the order given."""
    return max(totals, key=lambda name: totals[name])


def nodes_to_find(count: int, percentage: int) -> int:
    """How many fitting nodes are enough (kube-scheduler's percentageOfNodesToScore; 0 = adapt)."""
    if count < _MIN_NODES or percentage >= 100:
        return count
    share = percentage or max(50 - count // 125, _MIN_PERCENTAGE)
    return max(count * share // 100, _MIN_NODES)


def _preference(pod: Json, node: Node) -> int:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return sum(
        term["weight"]
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        if selected(node, [term["preference"]])
    )


def _normalised(values: Mapping[str, int]) -> dict[str, int]:
    top = max(values.values(), default=0)
    return {name: value * MAX_SCORE // top if top else 0 for name, value in values.items()}
