"""Slices that HAMi gave a pod by the pod's own annotations: a claim that proves nothing by itself.

Pure. `rules.py` compares claims with what the node reports. Any user may have written a claim; it
is read for what HAMi meant, not for what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Role
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import (
    ASSIGNED_NODE,
    MIG_ALLOCATIONS,
    annotations_of,
    decode_pod_devices,
)
from hamicommon.k8s.pod_object import containers_of
from hamicommon.vendors.registry import Vendors

OUR_VENDOR = "NVIDIA"
"""The vendor whose devices our node-agent serves, and so can testify to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A pod that is bound to a node, and what it holds there by its annotations."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    """spec.nodeName."""
    written_node: str
    """The node that HAMi wrote down."""
    containers: tuple[tuple[str, Role], ...]
    """All containers in the order of the spec."""
    written: tuple[tuple[DeviceShare, ...], ...] = ()
    """The entries that name a card, in order. HAMi loses empty ones, so that their position is
    not the container's (protocol, TRAP-1)."""
    problem: str = ""
    """Why the annotation can't be read."""
    mig: bool = False
    others: tuple[str, ...] = ()
    """Names of other vendors that gave the pod something, too."""

    @property
    def full_name(self) -> str:
        """Return the pod as people write it."""
        return f"{self.namespace}/{self.name}"


def claim_of(pod: Mapping[str, Any], vendors: Vendors) -> Claim | None:
    """The pod's claim; None when it is on no node, or its annotations name no vendor's devices."""
    written = annotations_of(pod)
    node = (pod.get("spec") or {}).get("nodeName")
    vendors_named = [v.name for v in vendors if v.keys.allocated and written.get(v.keys.allocated)]
    if not node or not vendors_named:
        return None
    metadata = pod["metadata"]
    claim = Claim(
        uid=PodUid(metadata["uid"]),
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        node=NodeName(node),
        written_node=written.get(ASSIGNED_NODE, ""),
        containers=tuple((str(c.get("name", "")), role) for role, c in containers_of(dict(pod))),
        mig=bool(written.get(MIG_ALLOCATIONS)),
        others=tuple(name for name in vendors_named if name != OUR_VENDOR),
    )
    if OUR_VENDOR not in vendors_named:
        return claim
    [vendor] = [v for v in vendors if v.name == OUR_VENDOR]
    try:
        entries = decode_pod_devices(written[vendor.keys.allocated])
    except InvalidRequest as exc:
        return replace(claim, problem=str(exc))
    return replace(claim, written=tuple(tuple(map(_ours, entry)) for entry in entries if entry))


def _ours(share: DeviceShare) -> DeviceShare:
    kind = "" if share.vendor == OUR_VENDOR else share.vendor
    return replace(share, vendor=OUR_VENDOR, type=kind)
