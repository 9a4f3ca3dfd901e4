"""Placements (chosen by the engine), allocations (granted by the ledger), and their states.

`docs/pod-path.md` shows the states and guarded transitions; the table of legal ones is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import Role

SliceKey = tuple[str, str, str]
"""Key of a slice by a ResourceClaim: uid of the claim, request, and share id."""


class AllocationState(StrEnum):
    """State of an allocation."""

    RESERVED = "reserved"
    """Cards are kept for a waiting pod until the pods that end for it are gone.

    Older releases wrote this state in /filter, too.
    """
    BINDING = "binding"
    BOUND = "bound"
    ALLOCATED = "allocated"
    RELEASING = "releasing"
    RELEASED = "released"
    EXPIRED = "expired"
    FAILED = "failed"
    RELEASED_UNCONFIRMED = "released_unconfirmed"


LIVE_STATES = frozenset(
    {
        AllocationState.RESERVED,
        AllocationState.BINDING,
        AllocationState.BOUND,
        AllocationState.ALLOCATED,
        AllocationState.RELEASING,
    }
)
"""States in which an allocation takes capacity."""


class Origin(StrEnum):
    """Way in which a grant came into the ledger."""

    SCHEDULED = "scheduled"
    """The scheduler's /filter and /bind granted it."""
    ADOPTED = "adopted"
    """HAMi granted it before: the kubelet has HAMi's answer, and no Allocate call will come."""
    UNMANAGED = "unmanaged"
    """The pod bypassed the scheduler and its node's agent asked for a grant.

    Older releases only.
    """
    CLAIM = "claim"
    """kube-scheduler allocated the cards to the pod's ResourceClaims (`hamicommon/dra`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """A slice of one card for one container."""

    uuid: GpuUuid
    vendor: str
    memory_mib: int
    core_percent: int
    """Percent of the card's cores, or the vendor's own unit if its module documents one."""
    slots: int = 1
    """Slots of the card; more than one only if the vendor counts a slice's size (Enflame)."""
    type: str = ""
    """Type that HAMi writes in annotations in place of the vendor's name.

    Empty: the vendor's name.
    """
    detail: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Facts that only the vendor understands, such as a MIG profile and its placement.

    JSON values, kept in the ledger; later decisions see them as `DeviceUsage.holdings`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGrant:
    """Grant of one container; `shares` is empty for a container that asked for no card."""

    index: int
    """Position of the container among init containers, followed by app containers."""
    name: str
    role: Role
    shares: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedSlice:
    """A slice that a container uses by a request of a ResourceClaim.

    Containers and pods that use the same claim hold one budget together: it is counted for one of
    them, the others have it beside that one.
    """

    container: int
    """Index of the container."""
    position: int
    """Position among the slices of that container."""
    claim_uid: str
    claim: str
    request: str
    share_id: str
    """`shareID` of the claim's allocation; a new allocation of the claim has another one."""
    share: DeviceShare
    counted: bool = True

    @property
    def key(self) -> SliceKey:
        """Key of the slice, the same for all containers that use it."""
        return self.claim_uid, self.request, self.share_id


def slices_name(keys: Iterable[SliceKey]) -> str:
    """Return the name of a container's slices by ResourceClaims.

    The name is the nonce of their limits directory, account and CDI device, whichever container or
    pod holds them. It is never reused, as each allocation has its own share ids.
    """
    return str(uuid5(NAMESPACE_OID, "/".join(min(keys))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Part of one card that an allocation takes (see `footprints`)."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The engine's choice: one node and the slices of every container, in spec order."""

    node: NodeName
    containers: tuple[ContainerGrant, ...]
    score: float = 0.0

    def footprints(self) -> tuple[Footprint, ...]:
        """Return what each card of the placement must hold; see `footprints`."""
        return footprints(self.containers)


def footprints(containers: Iterable[ContainerGrant]) -> tuple[Footprint, ...]:
    """Return what each card must hold for these containers' slices, in the order of uuids.

    A card holds, in each dimension, the greatest of each init container with the sidecars declared
    before it, and of all sidecars and app containers together, as kube-scheduler counts a pod's
    requests. `hami_beside` is the same rule in SQL.

    Args:
        containers: the pod's, in spec order. A sidecar that has role `app` is of a grant from
            before sidecars were distinguished: it is counted with the app containers only.
    """
    sidecars: dict[GpuUuid, _Amounts] = {}
    together: dict[GpuUuid, _Amounts] = {}
    highest: dict[GpuUuid, _Amounts] = {}
    for container in containers:
        for share in container.shares:
            uuid, own = share.uuid, (share.slots, share.memory_mib, share.core_percent)
            if container.role == "init":
                with_sidecars = _add(sidecars.get(uuid, _NOTHING), own)
                highest[uuid] = _maximum(highest.get(uuid, _NOTHING), with_sidecars)
                continue
            together[uuid] = _add(together.get(uuid, _NOTHING), own)
            if container.role == "sidecar":
                sidecars[uuid] = _add(sidecars.get(uuid, _NOTHING), own)
    found = []
    for uuid in sorted(highest.keys() | together.keys()):
        slots, memory_mib, core_percent = _maximum(
            highest.get(uuid, _NOTHING), together.get(uuid, _NOTHING)
        )
        found.append(
            Footprint(uuid=uuid, slots=slots, memory_mib=memory_mib, core_percent=core_percent)
        )
    return tuple(found)


_Amounts = tuple[int, int, int]
"""Slots, MiB of memory and percent of cores."""
_NOTHING: _Amounts = (0, 0, 0)


def _add(left: _Amounts, right: _Amounts) -> _Amounts:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


def _maximum(left: _Amounts, right: _Amounts) -> _Amounts:
    return max(left[0], right[0]), max(left[1], right[1]), max(left[2], right[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One row of the ledger: a pod's slices, and the state of their grant."""

    id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    attempt: int
    node: NodeName
    state: AllocationState
    containers: tuple[ContainerGrant, ...]
    """Containers with the slices that count for this allocation."""
    claims: tuple[ClaimedSlice, ...] = ()
    """Slices that the containers use by ResourceClaims, in order of container and position.

    Those without a counted slice count for another pod.
    """
    token: int | None = None
    """Fencing token, handed out when binding begins; each new one is higher."""
    reserved_at: datetime
    deadline: datetime | None = None
    traceparent: str = ""
    reason: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Annotations that the cards' vendors write on the pod, made when the cards were chosen."""
    origin: Origin = Origin.SCHEDULED
    has_agent: bool = True
    """Whether its node runs our agent; otherwise annotations carry the grant and its state."""

    @property
    def live(self) -> bool:
        """Whether the allocation takes capacity."""
        return self.state in LIVE_STATES
