"""Values that go into the ledger and come out of it, apart from any driver.

The scheduler's `AllocationStore` port speaks in these; its Postgres adapter and the verified fake
in `hamicommon.testing` both implement it.
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
from hamicommon.domain.pod_owner import PodOwner
from hamicommon.placement.vendor_policy import VendorRules

QuotaAmounts = Mapping[str, int]
"""What an allocation takes of its namespace's quota, by resource name: MiB of memory, or cores."""

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]
"""What an allocation's slices count in quotas."""

Rules = Mapping[str, VendorRules]
"""By vendor; one that is absent follows the standard rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reservation that somebody wants to make."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    placement: Placement
    lease_s: float
    """How long it may stay `reserved`."""
    mutex: bool = False
    """Policy `mutex`: the cards must be empty."""
    quota: QuotaAmounts = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    """Kept in the row for people."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """See `Allocation.annotations`."""
    seen: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Versions of the cards as the choice saw them; checked where `VendorRules.exact` is set."""
    core_totals: Mapping[GpuUuid, int] = field(default_factory=dict)
    """See `Need.of_core`, where the vendor's need has one."""
    traceparent: str = ""
    owner: PodOwner | None = None
    """Kept in the row for people; None: unknown."""
    replaces: AllocationId | None = None
    """A reservation of the same pod that is given up in the same transaction."""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A grant for a pod that is on its node already: it begins past `reserved` and `binding`."""

    draft: Draft
    state: AllocationState
    origin: Origin
    reason: str
    evidence: Mapping[str, Any]
    """What it rests on, kept with its first event."""
    claims: tuple[ClaimedSlice, ...] = ()
    """What of the draft's slices comes by ResourceClaims. A slice that another pod holds is left
    out of the draft by the ledger: it is counted already."""

    @property
    def guarded(self) -> bool:
        """False where the slices are held already, whether the ledger has room for them or not."""
        return self.origin is not Origin.ADOPTED


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingClaim:
    """A pod's reservation on this node is to be bound: `reserved -> binding`, with a new token."""

    pod_uid: PodUid
    node: NodeName
    actor: str
    lease_s: float
    """The binding's deadline from now, at least: a later one of the reservation stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationWrite:
    """One of several reservations that are written together."""

    draft: Draft
    """It replaces no other."""
    claim: BindingClaim | None = None
    """If given, the pod is to be bound already: `reserved -> binding` is written with it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change: the row as it is now, and the cards whose counters moved."""

    allocation: Allocation
    sequence: int
    """Number of the event in the pod's history, from 1, without a gap."""
    counters: tuple[CardCounters, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who is between bind and Allocate on a node."""

    pod_uid: PodUid
    allocation_id: AllocationId
    token: int
