"""What cards and containers use; told by the agents."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict

from hamicommon.events.payload import Payload


class DeviceSample(BaseModel):
    """One card at one moment; None is unknown, never 0."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    index: int
    type: str
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    gpu_percent: float | None = None
    memory_controller_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None


class ContainerSample(BaseModel):
    """One container's slice of one card at one moment, from its shared region."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str
    namespace: str
    pod: str
    container: str
    vdevice_index: int
    uuid: str
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    """None: unknown; 0: there is none."""
    context_bytes: int | None = None
    module_bytes: int | None = None
    buffer_bytes: int | None = None
    core_percent: float | None = None
    core_limit_percent: int | None = None
    """None: unknown; 0: there is none."""
    processes: int = 0
    """Living ones that use the card's library."""
    last_kernel_at: datetime | None = None


class Usage(Payload):
    """All samples of one node at one moment."""

    node: str
    agent_id: str
    sequence: int
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...]
    containers: tuple[ContainerSample, ...]
