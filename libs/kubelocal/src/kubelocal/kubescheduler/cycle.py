"""One scheduling cycle up to the choice of a node: filters, extenders, scores.

In: a pod and the cluster. Out: a node, or `NoFit` with the reason of every node. `loop` binds.

Scores: least allocated (free share of cpu and memory), preferred node affinity and avoided taints,
each 0..100 as in kube-scheduler; then the sum of the extenders' scores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hamicommon.k8s.types import Json

from kubelocal.kubescheduler.cluster import (
    KnownCluster,
    Node,
    is_selected,
    score_requests,
    untolerated_preferences,
    why_unfit,
)
from kubelocal.kubescheduler.events import fit_message
from kubelocal.kubescheduler.extender import Extender, ExtenderError
from kubelocal.pod_resources import CPU, MEMORY

MAX_SCORE = 100
MAX_EXTENDER_SCORE = 10
_MIN_NODES = 100  # below this kube-scheduler looks at all nodes
_MIN_PERCENTAGE = 5


def scores(pod: Json, nodes: Sequence[Node]) -> dict[str, int]:
    """Score nodes by name, higher is better, with kube-scheduler's default weights (1)."""
    wanted = score_requests(pod["spec"])
    affinity = _normalise({node.name: _preference(pod, node) for node in nodes})
    avoided = _normalise({node.name: untolerated_preferences(pod, node) for node in nodes})
    return {
        node.name: least_allocated(wanted, node)
        + affinity[node.name]
        + MAX_SCORE
        - avoided[node.name]
        for node in nodes
    }


def least_allocated(wanted: Mapping[str, int], node: Node) -> int:
    """Score by ((capacity - taken - wanted) x 100 / capacity), the mean over cpu and memory."""
    total = 0
    for name in (CPU, MEMORY):
        room = node.allocatable.get(name, 0)
        left = room - node.taken_for_score.get(name, 0) - wanted[name]
        if room > 0 and left > 0:
            total += left * MAX_SCORE // room
    return total // 2


def with_extender(own: Mapping[str, int], theirs: Mapping[str, int], weight: int) -> dict[str, int]:
    """Add an extender's scores (0..10 by contract), scaled and weighted."""
    factor = weight * MAX_SCORE // MAX_EXTENDER_SCORE
    return {name: score + theirs.get(name, 0) * factor for name, score in own.items()}


def best(totals: Mapping[str, int]) -> str:
    """Return the node with the highest score; of equal ones the first."""
    return max(totals, key=lambda name: totals[name])


def nodes_to_find(count: int, percentage: int) -> int:
    """Return the number of fitting nodes to find (percentageOfNodesToScore; 0: adaptive)."""
    if count < _MIN_NODES or percentage >= 100:
        return count
    share = percentage or max(50 - count // 125, _MIN_PERCENTAGE)
    return max(count * share // 100, _MIN_NODES)


def _preference(pod: Json, node: Node) -> int:
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return sum(
        term["weight"]
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        if is_selected(node, [term["preference"]])
    )


def _normalise(values: Mapping[str, int]) -> dict[str, int]:
    top = max(values.values(), default=0)
    return {name: value * MAX_SCORE // top if top else 0 for name, value in values.items()}


logger = logging.getLogger(__name__)

NO_NODES = "no nodes available to schedule pods"


class NoFit(Exception):
    """Error: no node fits; the message is kube-scheduler's.

    `by_extender`: an extender refused at least one node that our filters let through.
    """

    def __init__(self, message: str, *, by_extender: bool = False) -> None:
        super().__init__(message)
        self.by_extender = by_extender


class Decider:
    """Chooser of nodes; remembers at which node the next search starts."""

    def __init__(
        self, cluster: KnownCluster, extenders: Sequence[Extender], *, percentage: int = 0
    ) -> None:
        self._cluster = cluster
        self._extenders = extenders
        self._percentage = percentage
        self._next_start = 0

    async def choose(self, pod: Json) -> str:
        """Return the node for this pod.

        Raises:
            NoFit: nothing fits.
            ExtenderError: an extender that may not be ignored failed.
        """
        nodes = self._cluster.nodes()
        if not nodes:
            raise NoFit(NO_NODES)
        interested = [one for one in self._extenders if one.is_interested(pod)]
        fitting, reasons = self._filter(pod, nodes, interested)
        passed = len(fitting)
        for extender in interested:
            if not fitting:
                break
            fitting = await _ask(extender, pod, fitting, reasons)
        if not fitting:
            raise NoFit(fit_message(reasons, len(nodes)), by_extender=passed > 0)
        if len(fitting) == 1:
            return fitting[0].name
        totals = scores(pod, fitting)
        for extender in interested:
            theirs = await _prioritize(extender, pod, fitting)
            totals = with_extender(totals, theirs, extender.config.weight)
        return best(totals)

    def _filter(
        self, pod: Json, nodes: list[Node], interested: Sequence[Extender]
    ) -> tuple[list[Node], dict[str, tuple[str, ...]]]:
        """Return nodes that pass our filters, continuing after the last cycle, until enough."""
        ignored = frozenset().union(*(one.ignored_resources for one in self._extenders))
        enough = nodes_to_find(len(nodes), self._percentage)
        start = self._next_start % len(nodes)
        fitting: list[Node] = []
        reasons: dict[str, tuple[str, ...]] = {}
        for node in nodes[start:] + nodes[:start]:
            why = why_unfit(pod, node, ignored=ignored)
            if why:
                reasons[node.name] = why
                continue
            fitting.append(node)
            if len(fitting) >= enough:
                break
        self._next_start = (start + len(fitting) + len(reasons)) % len(nodes)
        return fitting, reasons


async def _ask(
    extender: Extender, pod: Json, nodes: list[Node], reasons: dict[str, tuple[str, ...]]
) -> list[Node]:
    try:
        answer = await extender.filter(pod, nodes)
    except ExtenderError as exc:
        if not extender.config.ignorable:
            raise
        logger.warning("Skipped an extender", extra={"error": str(exc)})
        return nodes
    for name, reason in answer.failed.items():
        reasons[name] = (*reasons.get(name, ()), reason)
    kept = set(answer.kept)
    return [node for node in nodes if node.name in kept]


async def _prioritize(extender: Extender, pod: Json, nodes: list[Node]) -> dict[str, int]:
    """Return the extender's scores, or none if the call fails, as in kube-scheduler."""
    try:
        return await extender.prioritize(pod, nodes)
    except ExtenderError as exc:
        logger.warning("Failed to prioritize nodes", extra={"error": str(exc)})
        return {}
