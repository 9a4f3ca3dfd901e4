"""Usage samples of cards and of containers' slices.

In: the bus payload `Usage`. Out: flat samples as they are stored, which
`adapters/rollups.py` sums up. A bucket keeps sums, maxima and the number of samples, so the average
over any longer window is exact: sum of sums by sum of counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.errors import InvalidRequest
from hamicommon.events import ContainerSample, DeviceSample, Usage

NodePod = tuple[str, str, str, str]
"""Node, uid, namespace and name of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Card or slice that a sample is about; the pod fields are empty for a card."""

    node: str
    device_uuid: str
    pod_uid: str = ""
    namespace: str = ""
    pod_name: str = ""
    container: str = ""

    @property
    def pod(self) -> NodePod:
        """Return the pod's node, uid, namespace and name."""
        return (self.node, self.pod_uid, self.namespace, self.pod_name)

    @property
    def sort_key(self) -> tuple[str, str, str, str]:
        """Return a key by which rows are written in one order, so that writers never deadlock."""
        return (self.node, self.device_uuid, self.pod_uid, self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values at one moment; None is unknown, never 0."""

    series: Series
    sampled_at: datetime
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    core_percent: float | None = None
    core_limit_percent: int | None = None


MAX_AGE = timedelta(hours=1)
MAX_AHEAD = timedelta(minutes=5)
"""Maximum time that a node's clock may be ahead of the bus."""


def samples_of(usage: Usage, *, received_at: datetime) -> list[Sample]:
    """Return all samples of a node's report; a limit of 0 means no limit.

    An agent that was cut off from the bus still owes the rounds of before; those of more than
    `MAX_AGE` ago are left out. Raises: InvalidRequest for dates that no agent writes whose clock is
    right.
    """
    oldest, latest = received_at - MAX_AGE, received_at + MAX_AHEAD
    if not oldest <= usage.sampled_at <= latest:
        raise InvalidRequest(_wrong_date("sampled_at", usage.sampled_at, received_at))
    if usage.earlier_rounds and max(usage.earlier_rounds) > latest:
        raise InvalidRequest(_wrong_date("earlier_rounds", max(usage.earlier_rounds), received_at))
    samples = _samples(usage.node, [usage.sampled_at], usage.devices, usage.containers)
    for past in usage.unchanged:
        rounds = [at for at in usage.earlier_rounds[-past.rounds :] if at >= oldest]
        samples += _samples(usage.node, rounds, past.devices, past.containers)
    return samples


def _wrong_date(field: str, at: datetime, received_at: datetime) -> str:
    return (
        f"usage report: {field} is {at.isoformat()} and the bus took it at "
        f"{received_at.isoformat()}; it may be {MAX_AGE} before and {MAX_AHEAD} after: set the "
        "node's clock"
    )


def _samples(
    node: str,
    rounds: Sequence[datetime],
    devices: Iterable[DeviceSample],
    containers: Iterable[ContainerSample],
) -> list[Sample]:
    cards = [
        Sample(
            series=series,
            sampled_at=at,
            memory_used_bytes=device.memory_used_bytes,
            memory_limit_bytes=device.memory_total_bytes,
            core_percent=device.gpu_percent,
        )
        for device in devices
        for series in [Series(node=node, device_uuid=device.uuid)]
        for at in rounds
    ]
    slices = [
        Sample(
            series=series,
            sampled_at=at,
            memory_used_bytes=container.memory_used_bytes,
            memory_limit_bytes=container.memory_limit_bytes or None,
            core_percent=container.core_percent,
            core_limit_percent=container.core_limit_percent or None,
        )
        for container in containers
        for series in [_series(node, container)]
        for at in rounds
    ]
    return cards + slices


def _series(node: str, container: ContainerSample) -> Series:
    return Series(
        node=node,
        device_uuid=container.uuid,
        pod_uid=container.pod_uid,
        namespace=container.namespace,
        pod_name=container.pod,
        container=container.container,
    )


FINE_S = 300
COARSE_S = 3600
DAY_S = 86400


def bucket_of(at: datetime, bucket_s: int) -> datetime:
    """Return the start of the bucket that contains `at`; buckets are aligned to the Unix epoch."""
    seconds = int(at.timestamp()) // bucket_s * bucket_s
    return datetime.fromtimestamp(seconds, UTC)
