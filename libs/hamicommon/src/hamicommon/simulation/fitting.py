"""Count how many more pods of one kind fit, by filling each node with them on a copy.

The engine is the one that places pods; what quotas, CPU, selectors and taints allow is not looked
at. Nodes whose cards are alike and equally full get one answer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime

from hamicommon.admission.filling import fill_in
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.simulation.cluster import Cluster
from hamicommon.simulation.planner import take
from hamicommon.simulation.verdict import judge
from hamicommon.vendors.pod_request import DEFAULT_POLICY
from hamicommon.vendors.registry import Vendors


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingPods:
    """Number of pods that still fit on a node."""

    node: NodeName
    pods: int


def fitting(
    pod: Json,
    view: ClusterView,
    vendors: Vendors,
    *,
    now: datetime,
    most: int,
    defaults: Policy = DEFAULT_POLICY,
    nodes: Collection[NodeName] | None = None,
) -> Iterator[FittingPods]:
    """Count per node, at most `most` pods on each; `view` is not changed.

    `nodes`: those to fill; None: all.

    Raises: InvalidRequest when admission would refuse the pod, or it asks for no card.
    """
    admitted = deepcopy(pod)
    check_pod(pod)
    wants, _ = fill_in(admitted, vendors)
    if not wants:
        raise InvalidRequest("the pod asks for no card: cards do not limit how many fit")
    known: dict[Hashable, int] = {}
    for node in sorted(view.nodes if nodes is None else nodes):
        alike = _likeness(view, node)
        if alike not in known:
            known[alike] = _on(node, admitted, view, vendors, now, most, defaults)
        yield FittingPods(node=node, pods=known[alike])


def _likeness(view: ClusterView, node: NodeName) -> Hashable:
    """Return a key that is equal for nodes that differ only in names."""
    rows, _ = view.rows_of([node])
    [row] = rows.tolist()
    places = {uuid: place for place, uuid in enumerate(view.uuids(row))}
    pairs = frozenset(
        (places.get(one), places.get(other), score)
        for one, others in view.pairs(row).items()
        for other, score in others.items()
    )
    cards = tuple(
        repr(replace(state.usage, device=replace(state.usage.device, uuid=GpuUuid(""))))
        for state in view.cards(node)
    )
    return cards, pairs


def _on(
    node: NodeName,
    pod: Json,
    view: ClusterView,
    vendors: Vendors,
    now: datetime,
    most: int,
    defaults: Policy,
) -> int:
    rows, _ = view.rows_of([node])
    pairs = view.pairs(int(rows[0]))
    own = ClusterView(vendors.rules)
    own.set_node(node, view.cards(node), pair_scores=pairs)
    cluster = Cluster(view=own, nodes=(node,), pair_scores={node: pairs})
    for count in range(most):
        verdict = judge(pod, cluster, vendors, now=now, defaults=defaults)
        if verdict.error:
            raise InvalidRequest(verdict.error)
        if verdict.chosen is None:
            return count
        take(cluster, node, verdict.nodes[node].containers)
    return most
