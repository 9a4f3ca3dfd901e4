"""Data types that are written to and read from the ledger, independent of the driver.

The scheduler's `AllocationStore` port uses these; its Postgres adapter implements it, and so does a
fake in the tests, which the same suite verifies.
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
"""Amounts that an allocation takes of quotas, by resource: MiB, or percent of cores."""

QuotaOf = Callable[[Sequence[ContainerGrant]], QuotaAmounts]
"""Function from an allocation's slices to the amounts that they take of quotas."""

Rules = Mapping[str, VendorRules]
"""Rules by vendor; a vendor without an entry has the standard rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A grant that is not written yet."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    placement: Placement
    lease_s: float
    """Maximum time in the first state, in seconds; 0: no deadline."""
    quota: QuotaAmounts = field(default_factory=dict)
    policy: Policy | None = None
    """Policy of the pod, checked again on the locked cards; None: the pod was not placed here."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the vendors; see `Allocation.annotations`."""
    seen: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Versions of the cards when they were chosen; checked if `VendorRules.exact` is set."""
    core_totals: Mapping[GpuUuid, int] = field(default_factory=dict)
    """Cores of the cards by the vendor's count; see `Need.of_core`."""
    traceparent: str = ""
    owner: PodOwner | None = None
    """Owner of the pod, for people who read the row; None: unknown."""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomVictim:
    """Grant whose pod ends to make room for another one."""

    allocation_id: AllocationId
    priority: int
    is_ending: bool = False
    """Whether its pod was being deleted when the plan was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Cards that a waiting pod gets when the grants of the victims are gone.

    No grant of another pod fits on these cards beside it (SAFE-7).
    """

    priority: int
    """Priority of the waiting pod."""
    victims: tuple[RoomVictim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A grant to be written: of a pod that is about to be bound, or already runs."""

    draft: Draft
    state: AllocationState = AllocationState.BINDING
    origin: Origin = Origin.SCHEDULED
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Reason why a pod that was not placed here gets a grant, stored with the first event."""
    claims: tuple[ClaimedSlice, ...] = ()
    """Slices of the draft that come by ResourceClaims.

    The ledger leaves a slice out of the draft if another pod holds it: it is counted already.
    """
    room: Room | None = None
    """Victims that end for this grant, whose state is `reserved`."""
    together: str = ""
    """Name shared by entries of one commit of which all are granted, or none."""

    @property
    def guarded(self) -> bool:
        """Whether the ledger may refuse the grant; false for slices that are held already."""
        return self.origin is not Origin.ADOPTED


def refused_together(entry: Entry, why: HamiError) -> Conflict:
    """Return the error for an entry that is refused because another one of its group was."""
    return Conflict(f"not granted, as one of {entry.together} was refused: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStep:
    """A guarded change of an allocation's state."""

    allocation_id: AllocationId
    sources: frozenset[AllocationState]
    """States of which the allocation must be in one."""
    target: AllocationState
    reason: str = ""
    actor: str = ""
    token: int | None = None
    """Fencing token that the row must still have; None: any."""
    new_token: bool = False
    """Whether the next fencing token is handed out."""
    lease_s: float | None = None
    """Time until the deadline of the new state, in seconds; None: no deadline."""
    node: NodeName | None = None
    """Node that the allocation must be on; None: any."""

    @classmethod
    def of(cls, row: Allocation, target: AllocationState, *, actor: str, **more: Any) -> StateStep:
        """Return the step of a row that still is as it was read: in its state, under its token."""
        about = {"token": row.token, **more}
        sources = frozenset({row.state})
        return cls(allocation_id=row.id, sources=sources, target=target, actor=actor, **about)


Command = Entry | StateStep
"""One change of the ledger; several are written in one transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCounters:
    """Counters of one card after a change, with the row's version."""

    node: str
    uuid: GpuUuid
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    version: int
    holdings: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """Details of slices on the card; see `DeviceUsage.holdings`."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Used amount of one namespace's quota after a change; limit None: unlimited."""

    namespace: str
    resource: str
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change: the allocation now, and the cards and quotas that changed."""

    allocation: Allocation
    """Allocation after the change.

    A step between live states without a new token leaves out containers, claims and annotations.
    """
    sequence: int
    """Number of the event in the pod's history, from 1 without a gap."""
    counters: tuple[CardCounters, ...] = ()
    quotas: tuple[QuotaUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Pod that holds a node's lock, from its binding until Allocate."""

    pod_uid: PodUid
    allocation_id: AllocationId
    token: int

    def may_replace(self, held: LockHolder) -> bool:
        """Return whether this binding replaced the holder's, or is the same one."""
        return self.allocation_id == held.allocation_id and self.token >= held.token
