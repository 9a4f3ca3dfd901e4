"""What cards and containers use; agents report it when it changes, and once a minute."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PositiveInt

from hamicommon.events.payload import Payload

USAGE_HEARTBEAT_S = 60
"""So often a node's agent reports everything, changed or not."""
USAGE_MOST_ROUNDS = 60
"""After so many rounds too: what one report can make a reader store has a bound."""


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


class Unchanged(BaseModel):
    """Samples that were reported before and read the same in some rounds, and in none after."""

    model_config = ConfigDict(frozen=True)

    rounds: PositiveInt
    """In so many, the last ones of the report's `earlier_rounds`."""
    devices: tuple[DeviceSample, ...] = ()
    containers: tuple[ContainerSample, ...] = ()


class Usage(Payload):
    """What is new of one node's use since its last report.

    Together the reports hold all that the agent saw in each round, as if it had reported it all.
    """

    node: str
    agent_id: str
    sequence: int
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...]
    """Those that are new or changed at `sampled_at`; all in the first round of a heartbeat."""
    containers: tuple[ContainerSample, ...]
    """As `devices`."""
    unchanged: tuple[Unchanged, ...] = ()
    """Runs of equal samples that ended with this report; those that go on are not in it yet."""
    earlier_rounds: tuple[AwareDatetime, ...] = Field(default=(), max_length=USAGE_MOST_ROUNDS)
    """The moments of the rounds that `unchanged` is about, ascending."""
