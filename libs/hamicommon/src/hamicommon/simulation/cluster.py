"""Node objects and placed pods -> the engine's view of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from hamicommon.domain.cordons import find_cordoned
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.explain.circumstances import PodHolding
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_node, metadata_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.simulation.holdings import HeldSlices, read_holdings
from hamicommon.vendors.interface.vendor import PairScores
from hamicommon.vendors.registry import Vendors

_NOTHING = HeldSlices()
MIG = "mig"
"""Mode of cards that are cut in hardware; only NVIDIA has such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What the objects show of the cluster."""

    view: ClusterView
    nodes: tuple[NodeName, ...]
    """All nodes, in the order given; the view knows only those with cards."""
    problems: tuple[str, ...] = ()
    """What could not be read and is therefore left out, one sentence each."""
    pair_scores: Mapping[NodeName, PairScores] = field(default_factory=dict)
    by_pod: tuple[PodHolding, ...] = ()
    """What every placed pod holds."""


def read_cluster(
    nodes: Iterable[Json],
    pods: Iterable[Json],
    vendors: Vendors,
    *,
    asking: Iterable[Json] = (),
) -> Cluster:
    """The cards of all nodes with what the pods hold on them.

    What a pod of `asking` holds already is not counted: it gives that back when it is placed again
    (protocol 4.5, 3).

    Raises: InvalidRequest when an object has not the shape of a Node or Pod, or no name.
    """
    uids = {metadata_of(pod).get("uid") for pod in asking}
    held = read_holdings(pods, vendors, without=uids)
    view = ClusterView(vendors.rules)
    names: list[NodeName] = []
    pair_scores: dict[NodeName, PairScores] = {}
    problems = held.problems
    for number, node in enumerate(nodes):
        check_node(node, f"node {number}")
        name = NodeName(node["metadata"]["name"])
        names.append(name)
        cards, pairs = _cards_of(node, held.cards.get(name, {}), vendors, problems)
        if cards:
            view.set_node(name, [CardState(card, 1) for card in cards], pair_scores=pairs)
            pair_scores[name] = pairs
    return Cluster(
        view=view,
        nodes=tuple(names),
        problems=tuple(problems),
        pair_scores=pair_scores,
        by_pod=tuple(held.by_pod),
    )


def _cards_of(
    node: Json, held: Mapping[GpuUuid, HeldSlices], vendors: Vendors, problems: list[str]
) -> tuple[list[DeviceUsage], PairScores]:
    found: list[tuple[GpuDevice, bool]] = []
    pairs: dict[GpuUuid, Mapping[GpuUuid, int]] = {}
    for vendor in vendors:
        try:
            devices = vendor.node_devices(node)
            if not devices or not vendor.plugin_alive(node):
                continue
            scores = vendor.node_pair_scores(node)
        except InvalidRequest as exc:
            problems.append(
                f"node {node['metadata']['name']}: its {vendor.name} cards are left out: {exc}"
            )
            continue
        lost = bool(_reserved(held) - {card.uuid for card in devices})
        found += ((card, lost) for card in devices)
        pairs |= scores
    entries = keys.decode_cordon(keys.annotations_of(node).get(keys.DEVICE_CORDON, ""))
    cordoned = find_cordoned(entries, [card for card, _ in found])
    problems += (
        f"node {node['metadata']['name']}: annotation {keys.DEVICE_CORDON}: {why}"
        for why in cordoned.unmatched.values()
        if found
    )
    return [_usage(card, held, cordoned.uuids, lost=lost) for card, lost in found], pairs


def _reserved(held: Mapping[GpuUuid, HeldSlices]) -> set[GpuUuid]:
    return {uuid for uuid, taken in held.items() if taken.reserved}


def _usage(
    card: GpuDevice, held: Mapping[GpuUuid, HeldSlices], cordoned: frozenset[GpuUuid], *, lost: bool
) -> DeviceUsage:
    taken = held.get(card.uuid, _NOTHING)
    # Fail closed, as HAMi: what is taken of the card is not known (protocol 4.4).
    if card.mode == MIG and (taken.unreserved or lost):
        card = replace(card, healthy=False, health_reason="a pod's MIG placement is unknown")
    elif card.mode != MIG and taken.reserved:
        card = replace(card, healthy=False, health_reason="a pod has a MIG placement on it")
    return DeviceUsage(
        device=card,
        used_slots=taken.slots,
        used_memory_mib=taken.memory_mib,
        used_core_percent=taken.core_percent,
        # HAMi reads the cordon of NVIDIA cards alone (protocol 1.1); ours closes any card.
        cordoned=card.uuid in cordoned,
        holdings=tuple(taken.details),
    )
