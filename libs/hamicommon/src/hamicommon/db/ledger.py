"""Values that go into the ledger and come out of it, apart from any driver.

The scheduler's `AllocationStore` port speaks in these; its Postgres adapter and the verified fake
in `hamicommon.testing` both implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    Placement,
    footprints,
)
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid

WHOLE_CARD_CORE_PERCENT = 100

QuotaAmounts = Mapping[str, int]
"""What an allocation takes of its namespace's quota, by resource name, in the resource's units."""


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
    traceparent: str = ""
    replaces: AllocationId | None = None
    """A reservation of the same pod that is given up in the same transaction."""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCounters:
    """Absolute counters of one card after a change, with the row's version."""

    node: str
    uuid: GpuUuid
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A committed change: the row as it is now, and the cards whose counters moved."""

    allocation: Allocation
    sequence: int
    """Number of the event in the pod's history, from 1, without a gap."""
    counters: tuple[CardCounters, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDemand:
    """What one allocation takes from one card, with the rules that the counters can't show."""

    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    exclusive: bool
    """A container wants all cores of the card: nobody else may be there (protocol 1.0.4, 13)."""
    coreless: bool
    """A container wants no cores: the card's must not be used up (rule 14)."""


def demands(containers: tuple[ContainerGrant, ...]) -> tuple[CardDemand, ...]:
    """Per card, ordered by uuid (the order in which rows are locked)."""
    cores: dict[GpuUuid, list[int]] = {}
    for container in containers:
        for share in container.shares:
            cores.setdefault(share.uuid, []).append(share.core_percent)
    return tuple(
        CardDemand(
            uuid=card.uuid,
            slots=card.slots,
            memory_mib=card.memory_mib,
            core_percent=card.core_percent,
            exclusive=max(cores[card.uuid]) >= WHOLE_CARD_CORE_PERCENT,
            coreless=min(cores[card.uuid]) == 0,
        )
        for card in footprints(containers)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who is between bind and Allocate on a node."""

    pod_uid: PodUid
    allocation_id: AllocationId
    token: int
