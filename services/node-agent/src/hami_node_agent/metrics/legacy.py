"""HAMi's metric names of before 2.6, for dashboards that still ask for them (`legacy_metrics`).

Same numbers as in `collectors.py`, other names and labels (protocol 6.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.metrics.collectors import (
    GaugeSpec,
    container_values,
    elapsed_s,
    families,
    mig_values,
)
from hami_node_agent.usage.sampler import Observation

_CARD = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_CONTAINER = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")


def _prefixed(product: str) -> str:
    """HAMi's older names have the prefix before every product name (protocol 6.5)."""
    # `type` already carries it where the driver's name lacks it.
    return product if product.startswith("NVIDIA-") else f"NVIDIA-{product}"


def _of_container(
    name: str, text: str, number: Callable[[ContainerSample], float | None]
) -> GaugeSpec[ContainerSample]:
    return GaugeSpec(
        name=name, text=text, labels=_CONTAINER, values=container_values, number=number
    )


def _cards(node: str) -> tuple[GaugeSpec[DeviceSample], ...]:
    def values(sample: DeviceSample) -> Sequence[str]:
        return (node, str(sample.index), sample.uuid, _prefixed(sample.type))

    return (
        GaugeSpec(
            name="HostGPUMemoryUsage",
            text="As hami_host_gpu_memory_used_bytes",
            labels=_CARD,
            values=values,
            number=lambda s: s.memory_used_bytes,
        ),
        GaugeSpec(
            name="HostCoreUtilization",
            text="As hami_host_gpu_utilization_ratio",
            labels=_CARD,
            values=values,
            number=lambda s: s.gpu_percent,
        ),
    )


def _parts(sample: ContainerSample) -> tuple[str, ...]:
    """Contexts, modules, buffers and the rest; a part that is unknown is an empty label."""
    parts = (sample.context_bytes, sample.module_bytes, sample.buffer_bytes)
    known = [part for part in parts if part is not None]
    total = sample.memory_used_bytes
    rest = None if total is None or len(known) < len(parts) else total - sum(known)
    return tuple("" if part is None else str(part) for part in (*parts, rest))


_CONTAINERS: tuple[GaugeSpec[ContainerSample], ...] = (
    _of_container(
        "vGPU_device_memory_usage_in_bytes",
        "As hami_vgpu_memory_used_bytes",
        lambda s: s.memory_used_bytes,
    ),
    _of_container(
        "vGPU_device_memory_limit_in_bytes",
        "As hami_vgpu_memory_limit_bytes",
        lambda s: s.memory_limit_bytes,
    ),
    _of_container(
        "Device_utilization_desc_of_container",
        "As hami_container_device_utilization_ratio",
        lambda s: s.core_percent,
    ),
    _of_container(
        "Device_last_kernel_of_container",
        "As hami_container_last_kernel_elapsed_seconds",
        elapsed_s,
    ),
    GaugeSpec(
        name="Device_memory_desc_of_container",
        text="As hami_container_device_memory_bytes, its parts as labels",
        labels=(*_CONTAINER, "context", "module", "data", "offset"),
        values=lambda s: (*container_values(s), *_parts(s)),
        number=lambda s: s.memory_used_bytes,
    ),
)

_MIG: tuple[GaugeSpec[MigDevice], ...] = (
    GaugeSpec(
        name="MigInfo",
        text="As hami_mig_device_info",
        labels=(*_CONTAINER, "instanceid"),
        values=lambda d: (*mig_values(d), str(d.reservation.gpu_instance_id)),
        number=lambda _: 1,
    ),
)


class LegacyCollector(Collector):
    """The older families, beside `NodeCollector`'s."""

    def __init__(
        self,
        latest: Callable[[], Observation],
        mig_devices: Callable[[], Sequence[MigDevice]],
        *,
        node: str,
    ) -> None:
        self._latest = latest
        self._mig_devices = mig_devices
        self._cards = _cards(node)

    def collect(self) -> Iterator[Metric]:
        """All of them, in a stable order."""
        seen = self._latest()
        yield from families(self._cards, seen.devices)
        yield from families(_CONTAINERS, seen.containers)
        yield from families(_MIG, self._mig_devices())
