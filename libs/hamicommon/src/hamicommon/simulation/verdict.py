"""Verdict on one pod: nodes that fit, reasons of the others, and the chosen node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hamicommon.domain.allocations import ContainerGrant, Placement
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import feasible
from hamicommon.placement.unschedulable import Refusal
from hamicommon.simulation.cluster import Cluster
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.pod_request import DEFAULT_POLICY, pod_request
from hamicommon.vendors.registry import Vendors

UNFILTERED = "unfiltered"
"""Value of `chosen` for a pod that asks for no card."""

Writer = Callable[[NodeName, Mapping[str, str]], Mapping[str, str]]
"""Function that writes the annotations for a node that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """Answer of one node."""

    fits: bool
    reason: str = ""
    """HAMi's reason; empty if the pod fits."""
    containers: tuple[ContainerGrant, ...] = ()
    """Grants of each container, in spec order."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations that all vendors would write at the given moment."""
    score: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Verdict on one pod."""

    nodes: Mapping[NodeName, SimulatedNode]
    chosen: NodeName | None = None
    unfiltered: bool = False
    """Whether the pod asks for no card: only kube-scheduler decides, and every node passes."""
    error: str = ""
    """Mistake of the pod that prevented the decision."""
    request: PodRequest | None = None
    """Request of the pod; None if it could not be read."""
    refusal: Refusal | None = None
    """Refusal by the nodes that do not fit."""

    def as_json(self, written: Writer = lambda node, annotations: annotations) -> Json:
        """Return the verdict as JSON: `nodes`, `chosen` and `error`."""
        return {
            "nodes": {name: self._node_json(name, written) for name in self.nodes},
            "chosen": UNFILTERED if self.unfiltered else self.chosen,
            "error": self.error,
        }

    def _node_json(self, name: NodeName, written: Writer) -> Json:
        answer = self.nodes[name]
        if self.unfiltered:
            return {"fits": True, "unfiltered": True}
        if self.error:
            return {"fits": False, "error": self.error}
        if not answer.fits:
            return {"fits": False, "reason": answer.reason}
        return {"fits": True, "annotations": written(name, answer.annotations)}


def judge(
    pod: Json,
    cluster: Cluster,
    vendors: Vendors,
    *,
    now: datetime,
    defaults: Policy = DEFAULT_POLICY,
) -> SimulationResult:
    """Decide as the scheduler would if the pod came now; nothing is reserved.

    A mistake of the pod is `SimulationResult.error`.
    """
    try:
        check_pod(pod)
        request = pod_request(pod, vendors, defaults)
    except InvalidRequest as exc:
        failed = {name: SimulatedNode(fits=False) for name in cluster.nodes}
        return SimulationResult(nodes=failed, error=str(exc))
    if not request.wants_devices:
        passed = {name: SimulatedNode(fits=True) for name in cluster.nodes}
        return SimulationResult(nodes=passed, unfiltered=True)
    found = feasible(request, cluster.view, cluster.nodes)
    nodes: dict[NodeName, SimulatedNode] = {}
    for name in cluster.nodes:
        placement = found.placements.get(name)
        if placement is None:
            nodes[name] = SimulatedNode(fits=False, reason=found.refusal.reasons[name])
        else:
            nodes[name] = _fitting(placement, request, cluster.view, vendors, now)
    chosen = next(reversed(found.placements), None)
    return SimulationResult(nodes=nodes, chosen=chosen, request=request, refusal=found.refusal)


def _fitting(
    placement: Placement, request: PodRequest, view: ClusterView, vendors: Vendors, now: datetime
) -> SimulatedNode:
    cards: dict[GpuUuid, GpuDevice] = {
        state.usage.device.uuid: state.usage.device for state in view.cards(placement.node)
    }
    placed = PlacedPod.by_card_ids(placement, cards, request.selections, now)
    annotations: dict[str, str] = {}
    for vendor in vendors:
        annotations |= vendor.pod_annotations(placed)
    return SimulatedNode(
        fits=True,
        containers=placement.containers,
        annotations=annotations,
        score=placement.score,
    )
