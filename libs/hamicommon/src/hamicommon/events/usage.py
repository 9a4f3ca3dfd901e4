"""Use of cards and containers; agents report it when it changes, and once a minute."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PositiveInt, model_validator

from hamicommon.events.inventory import MAX_CARDS
from hamicommon.events.payload import Amount, Count, NodePayload
from hamicommon.events.subjects import usage_subject

USAGE_HEARTBEAT_S = 60
"""Interval in which a node's agent reports everything, changed or not."""
USAGE_MAX_ROUNDS = 60
"""After so many rounds too: what one report can make a reader store has a bound."""
USAGE_MAX_ROWS = 100_000
"""Samples of one report with all of its rounds. No report of distinct slices that fits into a
message of the bus (1 MiB) has more."""
MAX_SAMPLES = 4096
"""Containers of one round."""

Name = Annotated[str, Field(max_length=253)]
Bytes = Annotated[int, Field(ge=0, le=2**44)]
"""The largest memory of one card: 16 TiB, a hundred times today's largest."""
Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
"""The limit of one card. A container's covers a moment, and may be above 100."""
Figure = Annotated[float, Field(ge=-1000, le=100_000, allow_inf_nan=False)]
"""Degrees and watts."""


class DeviceSample(BaseModel):
    """One card at one moment; None is unknown, never 0."""

    model_config = ConfigDict(frozen=True)

    uuid: Name
    index: Amount
    type: Name
    memory_used_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    gpu_percent: Percent | None = None
    memory_controller_percent: Percent | None = None
    temperature_celsius: Figure | None = None
    power_watts: Figure | None = None

    @model_validator(mode="after")
    def _check_memory(self) -> DeviceSample:
        used, total = self.memory_used_bytes, self.memory_total_bytes
        if used is not None and total is not None and used > total:
            raise ValueError(f"card {self.uuid} uses {used} of its {total} bytes of memory")
        return self


class ContainerSample(BaseModel):
    """One container's slice of one card at one moment, from its shared region."""

    model_config = ConfigDict(frozen=True)

    pod_uid: Name = Field(min_length=1)
    namespace: Name
    pod: Name
    container: Name
    vdevice_index: Amount
    uuid: Name
    memory_used_bytes: Bytes | None = None
    memory_limit_bytes: Bytes | None = None
    """None: unknown; 0: there is none."""
    context_bytes: Bytes | None = None
    module_bytes: Bytes | None = None
    buffer_bytes: Bytes | None = None
    core_percent: Percent | None = None
    core_limit_percent: Amount | None = None
    """None: unknown; 0: there is none."""
    processes: Amount = 0
    """Living ones that use the card's library."""
    last_kernel_at: datetime | None = None


class Unchanged(BaseModel):
    """Samples that were reported before and read the same in some rounds, and in none after."""

    model_config = ConfigDict(frozen=True)

    rounds: PositiveInt
    """In so many, the last ones of the report's `earlier_rounds`."""
    devices: tuple[DeviceSample, ...] = Field(default=(), max_length=MAX_CARDS)
    containers: tuple[ContainerSample, ...] = Field(default=(), max_length=MAX_SAMPLES)


class Usage(NodePayload):
    """Changes of one node's use since its last report.

    Together the reports hold all that the agent saw in each round, as if it had reported it all.
    """

    subject_of = staticmethod(usage_subject)

    agent_id: Name
    sequence: Count
    sampled_at: AwareDatetime
    devices: tuple[DeviceSample, ...] = Field(max_length=MAX_CARDS)
    """Cards that are new or changed at `sampled_at`; all in the first round of a heartbeat."""
    containers: tuple[ContainerSample, ...] = Field(max_length=MAX_SAMPLES)
    """Containers that are new or changed, like `devices`."""
    unchanged: tuple[Unchanged, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """Runs of equal samples that ended with this report; those that continue are not in it yet."""
    earlier_rounds: tuple[AwareDatetime, ...] = Field(default=(), max_length=USAGE_MAX_ROUNDS)
    """The moments of the rounds that `unchanged` is about, ascending."""

    @property
    def rows(self) -> int:
        """Samples that a reader stores for it."""
        rows = len(self.devices) + len(self.containers)
        for past in self.unchanged:
            rounds = min(past.rounds, len(self.earlier_rounds))
            rows += rounds * (len(past.devices) + len(past.containers))
        return rows

    @model_validator(mode="after")
    def _check_rows(self) -> Usage:
        if self.rows > USAGE_MAX_ROWS:
            raise ValueError(
                f"it has {self.rows} samples with all of its rounds; at most {USAGE_MAX_ROWS} are "
                "read"
            )
        return self
