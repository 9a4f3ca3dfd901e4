"""One scheduling cycle up to the choice of a node: filters, extenders, scores.

In: a pod and the cluster. Out: a node, or `NoFit` with the reason of every node. `loop` binds.
"""

import logging
from collections.abc import Sequence

from hamicommon.k8s.types import Json

from kubelocal.kubescheduler import scoring
from kubelocal.kubescheduler.cluster import KnownCluster, Node
from kubelocal.kubescheduler.events import fit_message
from kubelocal.kubescheduler.extender import Extender, ExtenderError
from kubelocal.kubescheduler.filters import why_unfit

logger = logging.getLogger(__name__)

NO_NODES = "no nodes available to schedule pods"


class NoFit(Exception):
    """No node will do; the text is kube-scheduler's own sentence.

    `by_extender`: an extender refused at least one node that our filters let through.
    """

    def __init__(self, message: str, *, by_extender: bool = False) -> None:
        super().__init__(message)
        self.by_extender = by_extender


class Decider:
    """Chooses nodes; remembers only where in the list of nodes it left off."""

    def __init__(
        self, cluster: KnownCluster, extenders: Sequence[Extender], *, percentage: int = 0
    ) -> None:
        self._cluster = cluster
        self._extenders = extenders
        self._percentage = percentage
        self._next_start = 0

    async def choose(self, pod: Json) -> str:
        """The node for this pod.

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
        totals = scoring.scores(pod, fitting)
        for extender in interested:
            theirs = await _prioritize(extender, pod, fitting)
            totals = scoring.with_extender(totals, theirs, extender.config.weight)
        return scoring.best(totals)

    def _filter(
        self, pod: Json, nodes: list[Node], interested: Sequence[Extender]
    ) -> tuple[list[Node], dict[str, tuple[str, ...]]]:
        """Nodes that pass our own filters, from where the last cycle ended, until enough."""
        ignored = frozenset().union(*(one.ignored_resources for one in self._extenders))
        enough = scoring.nodes_to_find(len(nodes), self._percentage)
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
        logger.warning("extender skipped", extra={"error": str(exc)})
        return nodes
    for name, reason in answer.failed.items():
        reasons[name] = (*reasons.get(name, ()), reason)
    kept = set(answer.kept)
    return [node for node in nodes if node.name in kept]


async def _prioritize(extender: Extender, pod: Json, nodes: list[Node]) -> dict[str, int]:
    """A failed prioritize is not an error to kube-scheduler: the extender then does not count."""
    try:
        return await extender.prioritize(pod, nodes)
    except ExtenderError as exc:
        logger.warning("prioritize failed", extra={"error": str(exc)})
        return {}
