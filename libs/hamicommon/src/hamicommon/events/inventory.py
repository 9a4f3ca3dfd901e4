"""What cards a node has; told by its agent."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, BaseModel, Field

from hamicommon.events.payload import Payload

HEARTBEAT_S = 10.0
"""An agent repeats its inventory at least this often."""


class MigProfileItem(BaseModel):
    """See domain.devices.MigProfile."""

    name: str
    memory_mib: int
    core_percent: int
    slice_count: int
    placements: tuple[tuple[int, int], ...] = ()


class InventoryDevice(BaseModel):
    """One card in an inventory; units as in domain.devices.GpuDevice."""

    uuid: str
    index: int
    vendor: str
    type: str
    slots: int
    memory_mib: int
    core_percent: int
    numa: int = 0
    mode: str = "hami-core"
    healthy: bool = True
    health_reason: str = ""
    mig_profiles: tuple[MigProfileItem, ...] = ()
    info: dict[str, Any] = Field(default_factory=dict)


class Inventory(Payload):
    """All cards of a node; sent on change and as heartbeat."""

    node: str
    agent_id: str
    """Changes with every start of the agent."""
    sequence: int
    """Grows within one agent_id; a lower one is stale."""
    observed_at: AwareDatetime
    devices: tuple[InventoryDevice, ...]
    pair_scores: dict[str, dict[str, int]] = Field(default_factory=dict)
