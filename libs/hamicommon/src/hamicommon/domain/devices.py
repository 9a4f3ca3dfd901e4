"""Cards as a node reports them, and how much of each is granted.

Memory is MiB, cores are percent of one card (a vendor may use other units, which its module
documents).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hamicommon.domain.ids import GpuUuid, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One way to cut a MIG card, as the driver reports it."""

    name: str
    memory_mib: int
    core_percent: int
    slice_count: int
    placements: tuple[tuple[int, int], ...]
    """(start, size) pairs in memory slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One card: identity and capacity."""

    uuid: GpuUuid
    index: int
    vendor: str
    """HAMi's `commonWord`, such as `NVIDIA`."""
    type: str
    """Product name, such as `NVIDIA A100-SXM4-80GB`."""
    slots: int
    """How many containers may share the card."""
    memory_mib: int
    core_percent: int
    """100 for a whole card; more only with core scaling."""
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Facts that only the card's vendor understands (its network, its link zone); JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInventory:
    """All cards of one node at one moment, with the pair scores if the node measured them."""

    node: NodeName
    devices: tuple[GpuDevice, ...]
    observed_at: datetime
    pair_scores: dict[GpuUuid, dict[GpuUuid, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.observed_at.tzinfo is None:
            raise ValueError("observed_at must be timezone aware")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """A card with what the ledger has granted on it."""

    device: GpuDevice
    used_slots: int = 0
    used_memory_mib: int = 0
    used_core_percent: int = 0
    cordoned: bool = False
    holdings: tuple[Mapping[str, Any], ...] = ()
    """`DeviceShare.detail` of every live slice on the card that has one, in no particular order."""

    @property
    def free_memory_mib(self) -> int:
        """Memory that may still be granted; negative on a card that shrank below what it holds."""
        return self.device.memory_mib - self.used_memory_mib

    @property
    def free_core_percent(self) -> int:
        """Cores that may still be granted."""
        return self.device.core_percent - self.used_core_percent
