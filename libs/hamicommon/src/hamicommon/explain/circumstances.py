"""What would have made a pod fit, and what the ledger's history adds to find it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from hamicommon.domain.ids import GpuUuid, NodeName

Kind = Literal[
    "memory",
    "cores",
    "count",
    "selection",
    "policy",
    "pods-end",
    "uncordon",
    "healthy",
    "quota",
    "unfinished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """One change that alone would have sufficed."""

    kind: Kind
    text: str
    container: str = ""
    limit: int | None = None
    """The largest amount that would have fitted: MiB, percent, or cards."""
    unit: str = ""
    node: NodeName | None = None
    pods: tuple[str, ...] = ()
    """`namespace/name` of those that must end."""
    cards: tuple[GpuUuid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHolding:
    """What one pod held of one card when it was decided; the effective footprint."""

    pod: str
    """`namespace/name`."""
    node: NodeName
    uuid: GpuUuid
    slots: int
    memory_mib: int
    core_percent: int
    details: tuple[Mapping[str, Any], ...] = ()
    """`DeviceShare.detail` of its slices on the card that have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the ledger's history adds to a record."""

    holdings: Sequence[PodHolding] = ()
    unhealthy_since: Mapping[GpuUuid, datetime] = field(default_factory=dict)
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Vendor -> `memory`, `percent`, `core`, `count` -> resource name."""
