"""Values that go into the ledger and come out of it, apart from any driver.

The scheduler's `AllocationStore` port uses these; its Postgres adapter implements it, and a fake
in the tests that the same suite verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ClaimedSlice,
    ContainerGrant,
    Origin,
    Placement,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.domain.requests import Policy
from hamicommon.errors import Conflict, HamiError
from hamicommon.placement.vendor_policy import VendorRules

QuotaAmounts = Mapping[str, int]
"""Amounts that an allocation takes of a quota, by resource: MiB of memory, or cores."""

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]
"""Function from an allocation's slices to what they count in quotas."""

Rules = Mapping[str, VendorRules]
"""By vendor; one that is absent follows the standard rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A grant that is to be made."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    placement: Placement
    lease_s: float
    """How long it may stay in its first state; 0: without a deadline."""
    quota: QuotaAmounts = field(default_factory=dict)
    policy: Policy | None = None
    """Judged once more on the locked cards; its names are kept in the row for people. None: the pod
    was not placed here."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """See `Allocation.annotations`."""
    seen: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Versions of the cards as the choice saw them; checked where `VendorRules.exact` is set."""
    core_totals: Mapping[GpuUuid, int] = field(default_factory=dict)
    """See `Need.of_core`, where the vendor's need has one."""
    traceparent: str = ""
    owner: PodOwner | None = None
    """Kept in the row for people; None: unknown."""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomVictim:
    """A grant whose pod ends for another one."""

    allocation_id: AllocationId
    priority: int
    is_ending: bool = False
    """Whether its pod was being deleted when the plan was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Grants whose cards a waiting pod gets when they are gone; until then it counts beside them.

    No grant of another pod fits on these cards beside it (SAFE-7).
    """

    priority: int
    """Priority of the pod that waits."""
    victims: tuple[RoomVictim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A grant that begins: of a pod that is to be bound, or of one that is on its node already."""

    draft: Draft
    state: AllocationState = AllocationState.BINDING
    origin: Origin = Origin.SCHEDULED
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Why a pod that was not placed here is granted its slices, kept with the first event."""
    claims: tuple[ClaimedSlice, ...] = ()
    """The draft's slices that come by ResourceClaims. The ledger leaves a slice out of the draft if
    another pod holds it: it is counted already."""
    room: Room | None = None
    """Grants that end for this one, whose state is `reserved`."""
    together: str = ""
    """Name that entries of one commit share if all of them are granted, or none."""

    @property
    def guarded(self) -> bool:
        """False where the slices are held already, whether the ledger has room for them or not."""
        return self.origin is not Origin.ADOPTED


def refused_together(entry: Entry, why: HamiError) -> Conflict:
    """The answer to an entry that would be granted, were another one of its name not refused."""
    return Conflict(f"not granted, as one of {entry.together} was refused: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """One guarded change of an allocation's state."""

    allocation_id: AllocationId
    sources: frozenset[AllocationState]
    """The step happens only from one of these."""
    target: AllocationState
    reason: str = ""
    actor: str = ""
    token: int | None = None
    """If given, the row must still carry it."""
    new_token: bool = False
    """Hand out the next fencing token."""
    lease_s: float | None = None
    """Deadline of the new state from now; None: it has none."""
    node: NodeName | None = None
    """If given, the row must be of this node."""


Command = Entry | StateStep
"""One change of the ledger that can be written together with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCounters:
    """Absolute counters of one card after a change, with the row's version."""

    node: str
    uuid: GpuUuid
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    version: int
    holdings: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """See `DeviceUsage.holdings`."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The amount of one namespace's quota that is used after a change; limit None: unlimited."""

    namespace: str
    resource: str
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change: the row as it is now, and the cards and quotas that changed with it."""

    allocation: Allocation
    """A step between live states without a new token: without containers, claims and
    annotations."""
    sequence: int
    """Number of the event in the pod's history, from 1, without a gap."""
    counters: tuple[CardCounters, ...] = ()
    quotas: tuple[QuotaUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Holder of a node between bind and Allocate."""

    pod_uid: PodUid
    allocation_id: AllocationId
    token: int

    def may_replace(self, held: LockHolder) -> bool:
        """Whether the holder's binding was taken over by this one's, or is this one's own."""
        return self.allocation_id == held.allocation_id and self.token >= held.token
