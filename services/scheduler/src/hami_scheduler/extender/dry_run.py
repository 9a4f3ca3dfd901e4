"""/filter over whole Node objects with nothing granted on them: a dry run of Cluster Autoscaler.

It asks whether a node that it would make could take the pod; nothing is reserved or recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide
from hamicommon.vendors.registry import Vendors

from hami_scheduler.extender.protocol import FilterResult

logger = logging.getLogger(__name__)


def dry_run(request: PodRequest, nodes: Sequence[Json], vendors: Vendors) -> FilterResult:
    """The node that it would go to, or each node's reason."""
    view = ClusterView(vendors.rules)
    objects = dict(zip(names_of(nodes), nodes, strict=True))
    for name, node in objects.items():
        if cards := _annotated_cards(node, vendors):
            view.set_node(name, cards)
    decision = decide(request, view, candidates=list(objects))
    if decision.placement is not None:
        return FilterResult(nodes=[objects[decision.placement.node]])
    assert decision.refusal is not None
    return FilterResult(refused=decision.refusal.reasons)


def names_of(nodes: Sequence[Json]) -> list[NodeName]:
    """The nodes' names, in their order."""
    return [NodeName(node["metadata"]["name"]) for node in nodes]


def _annotated_cards(node: Json, vendors: Vendors) -> list[CardState]:
    cards: list[CardState] = []
    for vendor in vendors:
        try:
            devices = vendor.node_devices(node)
        except InvalidRequest as exc:
            logger.info("Failed to read a node annotation", extra={"error": str(exc)})
            continue
        cards.extend(CardState(DeviceUsage(device=device), 1) for device in devices)
    return cards
