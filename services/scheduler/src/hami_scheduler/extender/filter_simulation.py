"""POST /filter-simulation: which of the given Node objects could take a pod with nothing granted.

An autoscaler whose simulation asks extenders calls it about nodes that may not exist. The cards are
those of the nodes' annotations, all of them free. Nothing is reserved, recorded or announced, and
any replica answers, in the process of the simulations.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hamicommon.admission.tampering.guard import Guard
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_node, check_pod
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import feasible
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from hami_scheduler.extender.filter import pod_refused
from hami_scheduler.extender.protocol import FilterResult, names_of, parse_extender_args

logger = logging.getLogger(__name__)


def simulate_filter(body: bytes, vendors: Vendors, guard: Guard, defaults: Policy) -> FilterResult:
    """Return all nodes that fit, and each other node's reason. Raises: InvalidRequest."""
    args = parse_extender_args(body)
    if args.nodes is None:
        raise InvalidRequest("expected Node objects in Nodes.items; /filter takes names of nodes")
    if not all(isinstance(node, dict) for node in args.nodes):
        raise InvalidRequest("extender args: Nodes.items must be a list of objects")
    check_pod(args.pod)
    for number, node in enumerate(args.nodes):
        check_node(node, f"node {number}")
    request = pod_request(args.pod, vendors, defaults)
    if not request.wants_devices:
        return FilterResult(nodes=args.nodes)
    names = names_of(args.nodes)
    if undoing := guard.at_filter(args.pod):
        return pod_refused(undoing, names)
    view = ClusterView(vendors.rules)
    for name, node in zip(names, args.nodes, strict=True):
        if cards := _annotated_cards(node, vendors):
            view.set_node(name, cards)
    found = feasible(request, view, names)
    fitting = [
        node for name, node in zip(names, args.nodes, strict=True) if name in found.placements
    ]
    return FilterResult(nodes=fitting, refused=found.refusal.reasons)


def _annotated_cards(node: Json, vendors: Vendors) -> Sequence[CardState]:
    cards: list[CardState] = []
    for vendor in vendors:
        try:
            devices = vendor.node_devices(node)
        except InvalidRequest as exc:
            logger.info("Failed to read a node annotation", extra={"error": str(exc)})
            continue
        cards.extend(CardState(DeviceUsage(device=device), 1) for device in devices)
    return cards
