"""The cluster as the ledger has it at one moment; what the Prometheus pages are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class PendingAge(StrEnum):
    """How long a pod waits."""

    UNDER_1M = "under_1m"
    UNDER_10M = "under_10m"
    UNDER_30M = "under_30m"
    OVER_30M = "over_30m"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCard:
    """One card that is present, with what is granted on it."""

    node: str
    uuid: str
    index: int
    type: str
    slots: int
    memory_mib: int
    core_percent: int
    used_slots: int
    used_memory_mib: int
    used_core_percent: int
    healthy: bool
    cordoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSlice:
    """Amounts that one pod effectively holds on one card: max(init, app) per dimension."""

    namespace: str
    pod_name: str
    node: str
    device_uuid: str
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMigInstance:
    """A MIG instance that a node made for a slice of a live grant."""

    node: str
    device_uuid: str
    device_index: int
    mig_uuid: str
    profile: str
    gpu_instance_id: int
    compute_instance_id: int
    start: int
    """First of the card's memory slices that it has."""
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """One quota; `limit` None is none. The resource's own units."""

    namespace: str
    resource: str
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCounts:
    """ResourceClaims with a live grant."""

    held: int = 0
    holders: int = 0
    """Pods that hold one; a claim may have several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """One consistent reading of the ledger."""

    taken_at: datetime
    cards: tuple[ClusterCard, ...]
    slices: tuple[PodSlice, ...]
    instances: tuple[ClusterMigInstance, ...]
    quotas: tuple[Quota, ...]
    allocations_by_state: Mapping[str, int]
    allocations_by_origin: Mapping[str, int]
    """Live ones by how they came (`Origin`)."""
    claims: ClaimCounts
    decisions_by_outcome: Mapping[str, int]
    """In the last `DECISIONS_WINDOW_S` seconds, repeats counted."""
    pending: Mapping[tuple[str, PendingAge], int]
    """Waiting pods by the reason that most nodes had (the question `pending-reasons`)."""
    heartbeats: Mapping[str, datetime]
    """By node that is there: when its agent last reported."""


DECISIONS_WINDOW_S = 300
SILENT_AFTER = timedelta(seconds=75)
"""Time for which an agent's report counts as known (`v_capacity_hours` counts alike)."""


def silent_nodes(snapshot: ClusterSnapshot, now: datetime) -> frozenset[str]:
    """Nodes whose agents were not heard recently."""
    return frozenset(n for n, at in snapshot.heartbeats.items() if now - at > SILENT_AFTER)
