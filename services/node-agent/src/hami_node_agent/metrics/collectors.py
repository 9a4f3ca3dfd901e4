"""Prometheus text of one node, with HAMi's names (protocol 6.5): unknown is absent, never 0.

In: `Sampler.latest` and the pods' MIG slices. Out: a collector that `routes.py` serves on :9394.
Every sample has the constant label zone="vGPU", except hami_build_info. HAMi's older names are in
`legacy.py`, what HAMi does not show in `health.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.usage.sampler import Observation

ZONE = ("zone", "vGPU")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSpec(Generic[T]):
    """One metric of things of one kind."""

    name: str
    text: str
    labels: tuple[str, ...]
    values: Callable[[T], Sequence[str]]
    """Of the labels."""
    number: Callable[[T], float | None]
    """None: unknown."""


def families(specs: Iterable[GaugeSpec[T]], things: Sequence[T]) -> Iterator[Metric]:
    """Each metric with a sample for every thing whose number is known."""
    for metric in specs:
        family = GaugeMetricFamily(metric.name, metric.text, labels=[ZONE[0], *metric.labels])
        for thing in things:
            number = metric.number(thing)
            if number is not None:
                family.add_metric([ZONE[1], *metric.values(thing)], number)
        yield family


def elapsed_s(sample: ContainerSample) -> float | None:
    """Seconds since the container's last kernel."""
    if sample.last_kernel_at is None:
        return None
    return max(0.0, (datetime.now(UTC) - sample.last_kernel_at).total_seconds())


def container_values(sample: ContainerSample) -> tuple[str, ...]:
    """Pod, container and card."""
    index = str(sample.vdevice_index)
    return (sample.namespace, sample.pod, sample.container, index, sample.uuid)


def mig_values(device: MigDevice) -> tuple[str, ...]:
    """Pod, container and card of a MIG slice."""
    pod, slice_ = device.pod, device.reservation
    index = str(slice_.device_index)
    return (pod.namespace, pod.name, device.container, index, slice_.card)


def _cards(node: str) -> tuple[GaugeSpec[DeviceSample], ...]:
    """Ratios are 0-100, as HAMi's are; `device_type` is what the ledger and its metrics have."""

    def of_card(
        name: str, text: str, number: Callable[[DeviceSample], float | None]
    ) -> GaugeSpec[DeviceSample]:
        return GaugeSpec(
            name=name,
            text=text,
            labels=("node", "device_index", "device_uuid", "device_type"),
            values=lambda s: (node, str(s.index), s.uuid, s.type),
            number=number,
        )

    return (
        of_card(
            "hami_host_gpu_memory_used_bytes",
            "Memory of the card in use, as the driver reports it",
            lambda s: s.memory_used_bytes,
        ),
        of_card(
            "hami_host_gpu_utilization_ratio",
            "Share of time in which the card computed, 0-100",
            lambda s: s.gpu_percent,
        ),
        of_card(
            "hami_host_gpu_memory_controller_utilization_ratio",
            "Share of time in which the card's memory was read or written, 0-100",
            lambda s: s.memory_controller_percent,
        ),
    )


def _of_container(
    name: str, text: str, number: Callable[[ContainerSample], float | None]
) -> GaugeSpec[ContainerSample]:
    return GaugeSpec(
        name=name,
        text=text,
        labels=("namespace", "pod", "container", "vdevice_index", "device_uuid"),
        values=container_values,
        number=number,
    )


_CONTAINERS: tuple[GaugeSpec[ContainerSample], ...] = (
    _of_container(
        "hami_vgpu_memory_used_bytes",
        "Memory that the container holds on the card",
        lambda s: s.memory_used_bytes,
    ),
    _of_container(
        "hami_vgpu_memory_limit_bytes",
        "Memory that it may hold, 0: no limit",
        lambda s: s.memory_limit_bytes,
    ),
    _of_container(
        "hami_vgpu_core_used_percent",
        "Share of the card's cores that it uses, 0-100",
        lambda s: s.core_percent,
    ),
    _of_container(
        "hami_vgpu_core_limit_percent",
        "Share of the card's cores that it may use, 0: no limit",
        lambda s: s.core_limit_percent,
    ),
    _of_container(
        "hami_container_device_memory_bytes",
        "As hami_vgpu_memory_used_bytes",
        lambda s: s.memory_used_bytes,
    ),
    _of_container(
        "hami_container_device_utilization_ratio",
        "As hami_vgpu_core_used_percent",
        lambda s: s.core_percent,
    ),
    _of_container(
        "hami_container_last_kernel_elapsed_seconds",
        "Since the container launched a kernel",
        elapsed_s,
    ),
    _of_container(
        "hami_container_last_kernel_timestamp_seconds",
        "When the container last launched a kernel (Unix time)",
        lambda s: None if s.last_kernel_at is None else s.last_kernel_at.timestamp(),
    ),
    _of_container(
        "hami_vgpu_memory_context_bytes", "Of its memory: contexts", lambda s: s.context_bytes
    ),
    _of_container(
        "hami_vgpu_memory_module_bytes", "Of its memory: modules", lambda s: s.module_bytes
    ),
    _of_container(
        "hami_vgpu_memory_buffer_bytes", "Of its memory: buffers", lambda s: s.buffer_bytes
    ),
    _of_container(
        "hami_vgpu_processes", "Living processes of the container", lambda s: s.processes
    ),
)

_MIG: tuple[GaugeSpec[MigDevice], ...] = (
    GaugeSpec(
        name="hami_mig_device_info",
        text="1 for each MIG slice that was made for a container",
        labels=(
            *("namespace", "pod", "container", "vdevice_index", "device_uuid"),
            *("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"),
        ),
        values=lambda d: (
            *mig_values(d),
            *(d.reservation.mig_uuid, d.reservation.slice.profile),
            *(str(d.reservation.gpu_instance_id), str(d.reservation.compute_instance_id)),
        ),
        number=lambda _: 1,
    ),
)


class NodeCollector(Collector):
    """Makes metric families of the latest observation at every scrape."""

    def __init__(
        self,
        latest: Callable[[], Observation],
        mig_devices: Callable[[], Sequence[MigDevice]],
        *,
        node: str,
        version: str,
    ) -> None:
        self._latest = latest
        self._mig_devices = mig_devices
        self._cards = _cards(node)
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """All families, in a stable order."""
        seen = self._latest()
        yield from families(self._cards, seen.devices)
        yield from families(_CONTAINERS, seen.containers)
        yield from families(_MIG, self._mig_devices())
        build = GaugeMetricFamily("hami_build_info", "Version of the agent", labels=["version"])
        build.add_metric([self._version], 1)
        yield build


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """A registry with these alone."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry
