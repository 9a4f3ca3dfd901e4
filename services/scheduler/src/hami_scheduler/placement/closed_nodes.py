"""Nodes that take no pod now: cordoned ones, and those with silent agents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import JsonMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedNodes:
    """Closed nodes with cards, by the node watch and the agents' silence."""

    registered: Callable[[], Collection[NodeName]]
    """Function that returns nodes with cards."""
    objects: Callable[[], Iterable[JsonMapping]]
    """Function that returns nodes of the node watch."""
    silent: Callable[[], Collection[NodeName]]
    """Function that returns nodes whose agents are silent."""

    def cordoned_nodes(self) -> frozenset[NodeName]:
        """Return the nodes that kube-scheduler offers to no pod (`kubectl cordon`)."""
        return frozenset(
            NodeName(node["metadata"]["name"])
            for node in self.objects()
            if (node.get("spec") or {}).get("unschedulable")
        ).intersection(self.registered())

    def by_reason(self) -> Mapping[str, frozenset[NodeName]]:
        """Return each closed node once, by the reason: `are cordoned`."""
        cordoned = self.cordoned_nodes()
        silent = frozenset(self.silent()).intersection(self.registered())
        return {"are cordoned": cordoned, "have a silent agent": silent - cordoned}
