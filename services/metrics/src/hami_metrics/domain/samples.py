"""Usage samples: one card or one container's slice of a card at one moment.

In: the bus payload `Usage`. Out: flat samples as they are stored, which `rollup.py` sums up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from hamicommon.events import ContainerSample, DeviceSample, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What a sample is of; the pod fields are empty for the card itself."""

    node: str
    device_uuid: str
    pod_uid: str = ""
    namespace: str = ""
    pod_name: str = ""
    container: str = ""

    @property
    def sort_key(self) -> tuple[str, str, str, str]:
        """The order in which rows are written, so that two writers never wait in a circle."""
        return (self.node, self.device_uuid, self.pod_uid, self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading; None is unknown, never 0."""

    series: Series
    sampled_at: datetime
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None
    core_percent: float | None = None
    core_limit_percent: int | None = None


def samples_of(usage: Usage) -> list[Sample]:
    """All readings of one node's report; a limit of 0 means that there is none."""
    samples = _samples(usage.node, usage.sampled_at, usage.devices, usage.containers)
    for past in usage.unchanged:
        for at in usage.earlier_rounds[-past.rounds :]:
            samples += _samples(usage.node, at, past.devices, past.containers)
    return samples


def _samples(
    node: str,
    at: datetime,
    devices: Iterable[DeviceSample],
    containers: Iterable[ContainerSample],
) -> list[Sample]:
    cards = [
        Sample(
            series=Series(node=node, device_uuid=device.uuid),
            sampled_at=at,
            memory_used_bytes=device.memory_used_bytes,
            memory_limit_bytes=device.memory_total_bytes,
            core_percent=device.gpu_percent,
        )
        for device in devices
    ]
    slices = [
        Sample(
            series=Series(
                node=node,
                device_uuid=container.uuid,
                pod_uid=container.pod_uid,
                namespace=container.namespace,
                pod_name=container.pod,
                container=container.container,
            ),
            sampled_at=at,
            memory_used_bytes=container.memory_used_bytes,
            memory_limit_bytes=container.memory_limit_bytes or None,
            core_percent=container.core_percent,
            core_limit_percent=container.core_limit_percent or None,
        )
        for container in containers
    ]
    return cards + slices
