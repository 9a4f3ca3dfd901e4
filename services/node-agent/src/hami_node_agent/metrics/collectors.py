"""Metrics of cards and containers with HAMi's names (protocol 6.5); unknown is absent, never 0.

In: `Sampler.latest` and the pods' MIG slices. Out: a collector that `http_server.py` serves on
:9394. Ratios are 0-100, as HAMi's are. Every sample has the constant label zone="vGPU", except
hami_build_info. HAMi's older names are in `legacy.py`, what HAMi does not show in `health.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import TypeVar

from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.usage.sampler import Observation

ZONE = ("zone", "vGPU")
T = TypeVar("T")
Row = tuple[str, str, Callable[[T], float | None]]
"""Name and help of a metric, and the function that returns its value; None: unknown."""


def families(
    rows: Iterable[Row[T]],
    things: Sequence[T],
    labels: Sequence[str],
    values: Callable[[T], Sequence[str]],
) -> Iterator[Metric]:
    """Yield each metric with a sample for every object whose value is known.

    `values`: those of the labels.
    """
    for name, text, number_of in rows:
        family = GaugeMetricFamily(name, text, labels=[ZONE[0], *labels])
        for thing in things:
            number = number_of(thing)
            if number is not None:
                family.add_metric([ZONE[1], *values(thing)], number)
        yield family


def elapsed_s(sample: ContainerSample) -> float | None:
    """Return the seconds since the container's last kernel."""
    if sample.last_kernel_at is None:
        return None
    return max(0.0, (datetime.now(UTC) - sample.last_kernel_at).total_seconds())


def container_values(sample: ContainerSample) -> tuple[str, ...]:
    """Return the label values pod, container and card."""
    index = str(sample.vdevice_index)
    return (sample.namespace, sample.pod, sample.container, index, sample.uuid)


def mig_values(device: MigDevice) -> tuple[str, ...]:
    """Return the label values pod, container and card of a MIG slice."""
    pod, slice_ = device.pod, device.reservation
    index = str(slice_.device_index)
    return (pod.namespace, pod.name, device.container, index, slice_.card)


def _mig_values(device: MigDevice) -> tuple[str, ...]:
    made = device.reservation
    ids = (str(made.gpu_instance_id), str(made.compute_instance_id))
    return (*mig_values(device), made.mig_uuid, made.slice.profile, *ids)


_CARD_LABELS = ("node", "device_index", "device_uuid", "device_type")
_CARDS: tuple[Row[DeviceSample], ...] = (
    (
        "hami_host_gpu_memory_used_bytes",
        "Memory of the card in use, as the driver reports it",
        lambda s: s.memory_used_bytes,
    ),
    (
        "hami_host_gpu_utilization_ratio",
        "Share of time in which the card computed, 0-100",
        lambda s: s.gpu_percent,
    ),
    (
        "hami_host_gpu_memory_controller_utilization_ratio",
        "Share of time in which the card's memory was read or written, 0-100",
        lambda s: s.memory_controller_percent,
    ),
)
_CONTAINER_LABELS = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
_CONTAINERS: tuple[Row[ContainerSample], ...] = (
    (
        "hami_vgpu_memory_used_bytes",
        "Memory that the container uses on the card",
        lambda s: s.memory_used_bytes,
    ),
    (
        "hami_vgpu_memory_limit_bytes",
        "Memory limit of the container, 0: no limit",
        lambda s: s.memory_limit_bytes,
    ),
    ("hami_vgpu_core_used_percent", "Share of the cores in use, 0-100", lambda s: s.core_percent),
    (
        "hami_vgpu_core_limit_percent",
        "Core limit of the container, 0: no limit",
        lambda s: s.core_limit_percent,
    ),
    (
        "hami_container_device_memory_bytes",
        "As hami_vgpu_memory_used_bytes",
        lambda s: s.memory_used_bytes,
    ),
    (
        "hami_container_device_utilization_ratio",
        "As hami_vgpu_core_used_percent",
        lambda s: s.core_percent,
    ),
    (
        "hami_container_last_kernel_elapsed_seconds",
        "Time since the container last launched a kernel",
        elapsed_s,
    ),
    (
        "hami_container_last_kernel_timestamp_seconds",
        "When the container last launched a kernel (Unix time)",
        lambda s: None if s.last_kernel_at is None else s.last_kernel_at.timestamp(),
    ),
    ("hami_vgpu_memory_context_bytes", "Memory used by contexts", lambda s: s.context_bytes),
    ("hami_vgpu_memory_module_bytes", "Memory used by modules", lambda s: s.module_bytes),
    ("hami_vgpu_memory_buffer_bytes", "Memory used by buffers", lambda s: s.buffer_bytes),
    ("hami_vgpu_processes", "Living processes of the container", lambda s: s.processes),
)
_MIG_LABELS = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
_MIG: tuple[Row[MigDevice], ...] = (
    ("hami_mig_device_info", "1 for each MIG slice that was made for a container", lambda _: 1),
)


@dataclass(eq=False)
class NodeCollector:
    """Collect metrics of the latest sample at every scrape."""

    latest: Callable[[], Observation]
    mig_devices: Callable[[], Sequence[MigDevice]]
    _: KW_ONLY
    node: str
    version: str

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families in a stable order."""
        seen = self.latest()
        yield from families(_CARDS, seen.devices, _CARD_LABELS, self._card_values)
        yield from families(_CONTAINERS, seen.containers, _CONTAINER_LABELS, container_values)
        mig_labels = (*_CONTAINER_LABELS, *_MIG_LABELS)
        yield from families(_MIG, self.mig_devices(), mig_labels, _mig_values)
        build = GaugeMetricFamily("hami_build_info", "Version of the agent", labels=["version"])
        build.add_metric([self.version], 1)
        yield build

    def _card_values(self, sample: DeviceSample) -> Sequence[str]:
        """Return the label values of a card; `device_type` is the ledger's."""
        return (self.node, str(sample.index), sample.uuid, sample.type)


Families = Callable[[], Iterable[Metric]]
"""Function that returns metric families at every scrape."""


@dataclass(eq=False)
class _FamiliesCollector(Collector):
    families: Families

    def collect(self) -> Iterable[Metric]:
        return self.families()


def registry_of(*sources: Families) -> CollectorRegistry:
    """Return a registry with only these collectors."""
    registry = CollectorRegistry(auto_describe=False)
    for source in sources:
        registry.register(_FamiliesCollector(source))
    return registry
