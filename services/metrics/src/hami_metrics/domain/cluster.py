"""State of the cluster in the ledger at one moment, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class PendingAge(StrEnum):
    """Time that a pod has waited."""

    UNDER_1M = "under_1m"
    UNDER_10M = "under_10m"
    UNDER_30M = "under_30m"
    OVER_30M = "over_30m"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCard:
    """Present card with its granted amounts."""

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
    """Part of one card that one pod takes: max(init, app) per dimension."""

    namespace: str
    pod_name: str
    node: str
    device_uuid: str
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMigInstance:
    """MIG instance that a node created for a slice of a live grant."""

    node: str
    device_uuid: str
    device_index: int
    mig_uuid: str
    profile: str
    gpu_instance_id: int
    compute_instance_id: int
    start: int
    """First of the card's memory slices that it occupies."""
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota in the resource's own unit; `limit` None: no limit."""

    namespace: str
    resource: str
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCounts:
    """Number of ResourceClaims with a live grant."""

    held: int = 0
    holders: int = 0
    """Number of pods that use one; a claim may have several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """State of the ledger at one moment."""

    taken_at: datetime
    cards: tuple[ClusterCard, ...]
    slices: tuple[PodSlice, ...]
    instances: tuple[ClusterMigInstance, ...]
    quotas: tuple[Quota, ...]
    allocations_by_state: Mapping[str, int]
    allocations_by_origin: Mapping[str, int]
    """Number of live allocations by `Origin`."""
    claims: ClaimCounts
    decisions_by_outcome: Mapping[str, int]
    """Number of decisions in the last `DECISIONS_WINDOW_S` seconds, repeats included."""
    pending: Mapping[tuple[str, PendingAge], int]
    """Number of waiting pods by reason of most nodes (question `pending-reasons`) and age."""
    heartbeats: Mapping[str, datetime]
    """Time of the last report of each present node's agent."""


DECISIONS_WINDOW_S = 300
SILENT_AFTER = timedelta(seconds=75)
"""Age from which an agent's report is too old (`v_capacity_hours` uses the same)."""


def silent_nodes(snapshot: ClusterSnapshot, now: datetime) -> frozenset[str]:
    """Return the nodes whose agents have not reported recently."""
    return frozenset(n for n, at in snapshot.heartbeats.items() if now - at > SILENT_AFTER)
