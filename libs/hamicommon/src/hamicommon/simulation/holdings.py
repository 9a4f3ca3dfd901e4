"""What placed pods hold on the cards of a node, as HAMi counts it (protocol 4.4).

Only pods with HAMi's assigned-node annotation count, and of these not the ones whose phase is
terminal. A pod with a deletionTimestamp still counts: its containers may run until it is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, footprints
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.explain.circumstances import PodHolding
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.mig import decode_reservations
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_placed
from hamicommon.vendors.interface.vendor import RestoresDetails, Vendor
from hamicommon.vendors.registry import Vendors

_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(slots=True)
class HeldSlices:
    """What all pods together hold of one card."""

    slots: int = 0
    memory_mib: int = 0
    core_percent: int = 0
    details: list[Mapping[str, Any]] = field(default_factory=list)
    """See `DeviceUsage.holdings`."""
    reserved: bool = False
    """A pod has a MIG placement on it."""
    unreserved: bool = False
    """A pod has a slice of it and no MIG placement: on a MIG card nobody knows what is taken."""


@dataclass(slots=True)
class Holdings:
    """What pods hold, by node and card."""

    cards: dict[NodeName, dict[GpuUuid, HeldSlices]] = field(default_factory=dict)
    by_pod: list[PodHolding] = field(default_factory=list)
    """The same pod by pod, to find whose end would help."""
    problems: list[str] = field(default_factory=list)
    """Pods that could not be read, one sentence each; they hold nothing here, as in HAMi."""


def read_holdings(
    pods: Iterable[Json], vendors: Vendors, *, without: Container[object] = ()
) -> Holdings:
    """Adds up what the given pods hold, but for those whose uid is in `without`.

    Raises: InvalidRequest when one of them has not the shape of a Pod.
    """
    found = Holdings()
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
            found.problems.append(f"pod {name} is not counted: {exc}")
            continue
        cards = found.cards.setdefault(NodeName(node), defaultdict(HeldSlices))
        for grant in grants:
            _add(cards, grant, places.keys())
            found.by_pod += _of_pod(name, NodeName(node), grant, places)
        for uuid, details in places.items():
            cards[uuid].details += details
            cards[uuid].reserved = True
    return found


def _add(
    cards: dict[GpuUuid, HeldSlices], containers: Sequence[ContainerGrant], placed: Collection[str]
) -> None:
    for taken in footprints(containers):
        held = cards[taken.uuid]
        held.unreserved = held.unreserved or taken.uuid not in placed
        held.slots += taken.slots
        held.memory_mib += taken.memory_mib
        held.core_percent += taken.core_percent
    for container in containers:
        for share in container.shares:
            if share.detail:
                cards[share.uuid].details.append(share.detail)


def _of_pod(
    name: str,
    node: NodeName,
    containers: Sequence[ContainerGrant],
    places: Mapping[GpuUuid, list[Mapping[str, Any]]],
) -> list[PodHolding]:
    shares = [share for container in containers for share in container.shares]
    return [
        PodHolding(
            pod=name,
            node=node,
            uuid=taken.uuid,
            slots=taken.slots,
            memory_mib=taken.memory_mib,
            core_percent=taken.core_percent,
            details=(
                *(share.detail for share in shares if share.uuid == taken.uuid and share.detail),
                *places.get(taken.uuid, ()),
            ),
        )
        for taken in footprints(containers)
    ]


def _grants(pod: Json, vendor: Vendor, text: str) -> list[ContainerGrant]:
    """What each of the pod's containers holds of one vendor; `text` is the vendor's annotation.

    Init containers that are through hold nothing.

    Raises: InvalidRequest when the annotation is malformed.
    """
    # By position alone, as HAMi: also where it left out the entry of an init container without a
    # card (TRAP-1).
    roles = [role for role, _ in containers_of(pod)]
    containers = keys.decode_pod_devices(text)
    if isinstance(vendor, RestoresDetails):
        containers = tuple(
            tuple(
                replace(share, detail=vendor.detail_of(share, keys.annotations_of(pod)))
                for share in shares
            )
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
    """Whether all init containers ended well, as far as the pod's status shows."""
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
    """Per card, the MIG slices that the pod's reservation annotation names (protocol 2.6).

    Raises: InvalidRequest when it is malformed.
    """
    found: dict[GpuUuid, list[Mapping[str, Any]]] = defaultdict(list)
    for one in decode_reservations(keys.annotations_of(pod).get(keys.MIG_ALLOCATIONS, "")):
        found[one.card].append(one.slice.detail)
    return found
