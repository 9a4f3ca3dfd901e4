"""Metrics with HAMi's names from before 2.6, for older dashboards (`legacy_metrics`).

Same numbers as in `collectors.py`, other names and labels (protocol 6.5). Deprecated, until 0.4.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from hamicommon.events import ContainerSample, DeviceSample
from prometheus_client.metrics_core import Metric

from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.metrics.collectors import (
    Row,
    container_values,
    elapsed_s,
    families,
    mig_values,
)
from hami_node_agent.usage.sampler import Observation

_CARD_LABELS = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
_CARDS: tuple[Row[DeviceSample], ...] = (
    ("HostGPUMemoryUsage", "As hami_host_gpu_memory_used_bytes", lambda s: s.memory_used_bytes),
    ("HostCoreUtilization", "As hami_host_gpu_utilization_ratio", lambda s: s.gpu_percent),
)
_CONTAINER_LABELS = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
_CONTAINERS: tuple[Row[ContainerSample], ...] = (
    (
        "vGPU_device_memory_usage_in_bytes",
        "As hami_vgpu_memory_used_bytes",
        lambda s: s.memory_used_bytes,
    ),
    (
        "vGPU_device_memory_limit_in_bytes",
        "As hami_vgpu_memory_limit_bytes",
        lambda s: s.memory_limit_bytes,
    ),
    (
        "Device_utilization_desc_of_container",
        "As hami_container_device_utilization_ratio",
        lambda s: s.core_percent,
    ),
    (
        "Device_last_kernel_of_container",
        "As hami_container_last_kernel_elapsed_seconds",
        elapsed_s,
    ),
)
_MEMORY_LABELS = (*_CONTAINER_LABELS, "context", "module", "data", "offset")
_MEMORY: tuple[Row[ContainerSample], ...] = (
    (
        "Device_memory_desc_of_container",
        "Same as hami_container_device_memory_bytes, with its parts as labels",
        lambda s: s.memory_used_bytes,
    ),
)
_MIG: tuple[Row[MigDevice], ...] = (("MigInfo", "As hami_mig_device_info", lambda _: 1),)


def _memory_values(sample: ContainerSample) -> tuple[str, ...]:
    """Return contexts, modules, buffers and the rest; an unknown part is an empty label."""
    parts = (sample.context_bytes, sample.module_bytes, sample.buffer_bytes)
    known = [part for part in parts if part is not None]
    total = sample.memory_used_bytes
    rest = None if total is None or len(known) < len(parts) else total - sum(known)
    texts = ("" if part is None else str(part) for part in (*parts, rest))
    return (*container_values(sample), *texts)


def _mig_values(device: MigDevice) -> tuple[str, ...]:
    return (*mig_values(device), str(device.reservation.gpu_instance_id))


@dataclass(eq=False)
class LegacyCollector:
    """Collect the older metrics, in addition to `NodeCollector`."""

    latest: Callable[[], Observation]
    mig_devices: Callable[[], Sequence[MigDevice]]
    _: KW_ONLY
    node: str

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families in a stable order."""
        seen = self.latest()
        yield from families(_CARDS, seen.devices, _CARD_LABELS, self._card_values)
        yield from families(_CONTAINERS, seen.containers, _CONTAINER_LABELS, container_values)
        yield from families(_MEMORY, seen.containers, _MEMORY_LABELS, _memory_values)
        mig_labels = (*_CONTAINER_LABELS, "instanceid")
        yield from families(_MIG, self.mig_devices(), mig_labels, _mig_values)

    def _card_values(self, sample: DeviceSample) -> Sequence[str]:
        """Return the label values of a card, with HAMi's older prefix of product names."""
        # `type` already carries it where the driver's name lacks it.
        product = f"NVIDIA-{sample.type.removeprefix('NVIDIA-')}"
        return (self.node, str(sample.index), sample.uuid, product)
