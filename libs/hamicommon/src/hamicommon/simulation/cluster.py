"""Convert Node objects and placed pods into the engine's view of the cluster.

Pods hold cards as HAMi counts them (protocol 4.4): only pods with HAMi's assigned-node annotation
hold cards, unless their phase is terminal. A pod with a deletionTimestamp still counts, because its
containers may run until it is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.devices import DeviceUsage, GpuDevice, find_cordoned
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.mig import decode_reservations
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_node, check_placed, metadata_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.vendors.interface.vendor import PairScores, Vendor
from hamicommon.vendors.registry import Vendors

MIG = "mig"
"""Mode of cards that are cut in hardware, which only NVIDIA has."""
_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Cluster as its objects describe it."""

    view: ClusterView
    nodes: tuple[NodeName, ...]
    """All nodes in the order given; the view has only those with cards."""
    problems: tuple[str, ...] = ()
    """Objects that could not be read and are left out, one sentence each."""
    pair_scores: Mapping[NodeName, PairScores] = field(default_factory=dict)
    by_pod: tuple[PodHolding, ...] = ()
    """Slices of every placed pod, to find pods whose end would help."""


@dataclass(slots=True)
class _HeldSlices:
    """Sum of all pods' slices of one card."""

    slots: int = 0
    memory_mib: int = 0
    core_percent: int = 0
    details: list[Mapping[str, Any]] = field(default_factory=list)
    """Details of slices; see `DeviceUsage.holdings`."""
    reserved: bool = False
    """Whether a pod has a MIG placement on the card."""
    unreserved: bool = False
    """Whether a pod has a slice without a MIG placement, so that use of a MIG card is unknown."""


_NOTHING = _HeldSlices()
_Held = dict[NodeName, dict[GpuUuid, _HeldSlices]]


def read_cluster(
    nodes: Iterable[Json],
    pods: Iterable[Json],
    vendors: Vendors,
    *,
    asking: Iterable[Json] = (),
) -> Cluster:
    """Read the cards of all nodes, and the slices of them that pods hold.

    A pod of `asking` releases its slices when it is placed again (protocol 4.5, 3), so they are not
    counted.

    Raises: InvalidRequest if an object does not have the form of a Node or Pod, or has no name.
    """
    problems: list[str] = []
    held: _Held = {}
    without = {metadata_of(pod).get("uid") for pod in asking}
    by_pod = tuple(_holdings(pods, vendors, without, held, problems))
    view = ClusterView(vendors.rules)
    names: list[NodeName] = []
    pair_scores: dict[NodeName, PairScores] = {}
    for number, node in enumerate(nodes):
        check_node(node, f"node {number}")
        name = NodeName(node["metadata"]["name"])
        names.append(name)
        cards, pairs = _cards_of(node, held.get(name, {}), vendors, problems)
        if cards:
            view.set_node(name, [CardState(card, 1) for card in cards], pair_scores=pairs)
            pair_scores[name] = pairs
    return Cluster(
        view=view,
        nodes=tuple(names),
        problems=tuple(problems),
        pair_scores=pair_scores,
        by_pod=by_pod,
    )


def _cards_of(
    node: Json, held: Mapping[GpuUuid, _HeldSlices], vendors: Vendors, problems: list[str]
) -> tuple[list[DeviceUsage], PairScores]:
    found: list[tuple[GpuDevice, bool]] = []
    pairs: dict[GpuUuid, Mapping[GpuUuid, int]] = {}
    reserved = {uuid for uuid, taken in held.items() if taken.reserved}
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
        lost = bool(reserved - {card.uuid for card in devices})
        found += ((card, lost) for card in devices)
        pairs |= scores
    entries = keys.decode_cordon(keys.annotations_of(node).get(keys.DEVICE_CORDON, ""))
    cordoned = find_cordoned(entries, [card for card, _ in found])
    problems += (
        f"node {node['metadata']['name']}: annotation {keys.DEVICE_CORDON}: {why}"
        for why in cordoned.unmatched.values()
        if found
    )
    usages = []
    for card, lost in found:
        taken = held.get(card.uuid, _NOTHING)
        usages.append(
            DeviceUsage(
                device=_close_if_unknown(card, taken, lost=lost),
                used_slots=taken.slots,
                used_memory_mib=taken.memory_mib,
                used_core_percent=taken.core_percent,
                # HAMi only reads the cordon of NVIDIA cards (protocol 1.1); ours closes any card.
                cordoned=card.uuid in cordoned.uuids,
                holdings=tuple(taken.details),
            )
        )
    return usages, pairs


def _close_if_unknown(card: GpuDevice, taken: _HeldSlices, *, lost: bool) -> GpuDevice:
    """Return the card, closed if its use is unknown, as in HAMi (protocol 4.4)."""
    if card.mode == MIG and (taken.unreserved or lost):
        return replace(card, healthy=False, health_reason="a pod's MIG placement is unknown")
    if card.mode != MIG and taken.reserved:
        return replace(card, healthy=False, health_reason="a pod has a MIG placement on it")
    return card


def _holdings(
    pods: Iterable[Json],
    vendors: Vendors,
    without: Container[object],
    held: _Held,
    problems: list[str],
) -> Iterator[PodHolding]:
    """Add the pods' slices to `held`, except for pods whose uid is in `without`.

    A pod that can't be read holds nothing here, as in HAMi.

    Raises: InvalidRequest if one of them does not have the form of a Pod.
    """
    vendor_of = {vendor.keys.allocated: vendor for vendor in vendors if vendor.keys.allocated}
    for number, pod in enumerate(pods):
        check_placed(pod, f"placed pod {number}")
        metadata = pod.get("metadata") or {}
        written = keys.annotations_of(pod)
        node = written.get(keys.ASSIGNED_NODE)
        if not node or (pod.get("status") or {}).get("phase") in _TERMINAL:
            continue
        if metadata.get("uid") and metadata["uid"] in without:
            continue
        name = f"{metadata.get('namespace') or 'default'}/{metadata.get('name', '')}"
        try:
            grants = [
                _grants(pod, vendor_of[key], text)
                for key, text in written.items()
                if key in vendor_of
            ]
            places = _mig_places(pod)
        except InvalidRequest as exc:
            problems.append(f"pod {name} is not counted: {exc}")
            continue
        cards = held.setdefault(NodeName(node), defaultdict(_HeldSlices))
        for containers in grants:
            details = defaultdict[GpuUuid, list[Mapping[str, Any]]](list)
            for share in (share for each in containers for share in each.shares if share.detail):
                details[share.uuid].append(share.detail)
                cards[share.uuid].details.append(share.detail)
            for taken in footprints(containers):
                card = cards[taken.uuid]
                card.unreserved = card.unreserved or taken.uuid not in places
                card.slots += taken.slots
                card.memory_mib += taken.memory_mib
                card.core_percent += taken.core_percent
                yield PodHolding(
                    pod=name,
                    node=NodeName(node),
                    uuid=taken.uuid,
                    slots=taken.slots,
                    memory_mib=taken.memory_mib,
                    core_percent=taken.core_percent,
                    details=(*details[taken.uuid], *places.get(taken.uuid, ())),
                )
        for uuid, reservations in places.items():
            cards[uuid].details += reservations
            cards[uuid].reserved = True


def _grants(pod: Json, vendor: Vendor, text: str) -> list[ContainerGrant]:
    """Read the slices of each container from the vendor's annotation `text`.

    Completed init containers hold nothing.

    Raises: InvalidRequest if the annotation is malformed.
    """
    # Only by position, as in HAMi, even if HAMi omitted the entry of an init container without a
    # card (TRAP-1).
    roles = [role for role, _ in containers_of(pod)]
    containers = keys.decode_pod_devices(text)
    written = keys.annotations_of(pod)
    containers = tuple(
        tuple(replace(share, detail=vendor.detail_of(share, written)) for share in shares)
        for shares in containers
    )
    over = "init" if _init_is_through(pod) else ""
    found = []
    for index, shares in enumerate(containers):
        role = roles[index] if index < len(roles) else "app"
        if role != over:
            found.append(ContainerGrant(index=index, name="", role=role, shares=shares))
    return found


def _init_is_through(pod: Json) -> bool:
    """Return whether all init containers succeeded, by the pod's status."""
    sidecars = {
        container.get("name") for role, container in containers_of(pod) if role == "sidecar"
    }
    ends = [
        ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
        for status in (pod.get("status") or {}).get("initContainerStatuses") or ()
        if status.get("name") not in sidecars
    ]
    return bool(ends) and all(code == 0 for code in ends)


def _mig_places(pod: Json) -> dict[GpuUuid, list[Mapping[str, Any]]]:
    """Read the MIG slices by card from the pod's reservation annotation (protocol 2.6).

    Raises: InvalidRequest when it is malformed.
    """
    found: dict[GpuUuid, list[Mapping[str, Any]]] = defaultdict(list)
    for one in decode_reservations(keys.annotations_of(pod).get(keys.MIG_ALLOCATIONS, "")):
        found[one.card].append(one.slice.detail)
    return found
