"""Prometheus text of one node, with HAMi's names (protocol sheet 6.5): unknown is absent, never 0.

In: `Sampler.latest`. Out: the collector that `routes.py` serves on :9394. Every sample has the
constant label zone="vGPU", except hami_build_info.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.usage import Observation

ZONE = ("zone", "vGPU")
_DEVICE = ("device_index", "device_uuid", "device_type")
_CONTAINER = ("namespace", "pod", "container", "vdevice_index", "device_uuid")

_DEVICE_GAUGES: tuple[tuple[str, str, bool, Callable[[DeviceSample], float | None]], ...] = (
    (
        "hami_host_gpu_memory_used_bytes",
        "GPU device memory usage in bytes",
        True,
        lambda s: s.memory_used_bytes,
    ),
    ("hami_host_gpu_utilization_ratio", "GPU core utilization", True, lambda s: s.gpu_percent),
    (
        "hami_host_gpu_memory_controller_utilization_ratio",
        "GPU memory controller utilization",
        False,
        lambda s: s.memory_controller_percent,
    ),
)
"""(name, help, with the node label, value); ratios are 0-100, as HAMi's are."""

_CONTAINER_GAUGES: tuple[tuple[str, str, Callable[[ContainerSample], float | None]], ...] = (
    ("hami_vgpu_memory_used_bytes", "vGPU device memory usage", lambda s: s.memory_used_bytes),
    ("hami_vgpu_memory_limit_bytes", "vGPU device memory limit", lambda s: s.memory_limit_bytes),
    (
        "hami_container_device_memory_bytes",
        "Container device memory usage",
        lambda s: s.memory_used_bytes,
    ),
    (
        "hami_container_device_utilization_ratio",
        "Container device utilization",
        lambda s: s.core_percent,
    ),
    (
        "hami_container_last_kernel_elapsed_seconds",
        "Seconds since the container's last kernel",
        lambda s: _elapsed_s(s),
    ),
    ("hami_vgpu_memory_context_bytes", "Memory of contexts", lambda s: s.context_bytes),
    ("hami_vgpu_memory_module_bytes", "Memory of modules", lambda s: s.module_bytes),
    ("hami_vgpu_memory_buffer_bytes", "Memory of buffers", lambda s: s.buffer_bytes),
)


class NodeCollector(Collector):
    """Makes metric families of the latest observation at every scrape."""

    def __init__(self, latest: Callable[[], Observation], *, node: str, version: str) -> None:
        self._latest = latest
        self._node = node
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """All families, in a stable order."""
        seen = self._latest()
        yield from self._devices(seen.devices)
        yield from _containers(seen.containers)
        build = GaugeMetricFamily("hami_build_info", "Version of the agent", labels=["version"])
        build.add_metric([self._version], 1)
        yield build

    def _devices(self, samples: Iterable[DeviceSample]) -> Iterator[Metric]:
        samples = tuple(samples)
        for name, text, with_node, value in _DEVICE_GAUGES:
            labels = [ZONE[0], *(["node"] if with_node else []), *_DEVICE]
            family = GaugeMetricFamily(name, text, labels=labels)
            for sample in samples:
                number = value(sample)
                if number is not None:
                    node = [self._node] if with_node else []
                    where = [str(sample.index), sample.uuid, _always_prefixed(sample.type)]
                    family.add_metric([ZONE[1], *node, *where], number)
            yield family


def _containers(samples: Iterable[ContainerSample]) -> Iterator[Metric]:
    samples = tuple(samples)
    for name, text, value in _CONTAINER_GAUGES:
        family = GaugeMetricFamily(name, text, labels=[ZONE[0], *_CONTAINER])
        for sample in samples:
            number = value(sample)
            if number is not None:
                labels = [sample.namespace, sample.pod, sample.container]
                labels += [str(sample.vdevice_index), sample.uuid]
                family.add_metric([ZONE[1], *labels], number)
        yield family


def _always_prefixed(product: str) -> str:
    """HAMi's monitor prefixes every name, also one that begins with NVIDIA (sheet 6.5)."""
    # `type` already carries the prefix where the driver's name lacks it.
    return product if product.startswith("NVIDIA-") else f"NVIDIA-{product}"


def _elapsed_s(sample: ContainerSample) -> float | None:
    if sample.last_kernel_at is None:
        return None
    return max(0.0, (datetime.now(UTC) - sample.last_kernel_at).total_seconds())


def registry_of(collector: Collector) -> CollectorRegistry:
    """A registry with this collector alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
