"""Metric families of HAMi's scheduler, by its names (protocol 4.10). Pure.

Each has a second name, of before 2.6, with other labels, for dashboards that still ask for it
(`legacy_metrics`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hami_metrics.domain.cluster import (
    ClusterCard,
    ClusterMigInstance,
    ClusterSnapshot,
    PodSlice,
    Quota,
)

T = TypeVar("T")
Labels = tuple[tuple[str, str, Callable[[T], object]], ...]
"""Name, older name and value of each label."""


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[T]):
    """Gauge with a sample for each object."""

    name: str
    older_name: str
    """Older name; empty: none."""
    text: str
    labels: Labels[T]
    number: Callable[[T], float | None]
    """Function that returns the value of an object; None: it has none."""
    older_labels: Labels[T] | None = None
    """Labels with the older name, if they differ."""

    def family(self, things: Iterable[T], *, older: bool) -> Metric:
        """Return the family with a sample of each object."""
        labels = self.older_labels if older and self.older_labels is not None else self.labels
        numbers = ((thing, self.number(thing)) for thing in things)
        return zoned_gauge(
            self.older_name if older else self.name,
            f"Older name of {self.name}" if older else self.text,
            [older_name if older else name for name, older_name, _ in labels],
            [
                ([str(value(thing)) for _, _, value in labels], number)
                for thing, number in numbers
                if number is not None
            ],
        )


_NODE: Labels[ClusterCard] = (
    ("node", "nodeid", lambda c: c.node),
    ("device_uuid", "deviceuuid", lambda c: c.uuid),
    ("device_index", "deviceidx", lambda c: c.index),
)
_CORES: Labels[ClusterCard] = (("device_cores", "devicecores", lambda c: c.core_percent),)
_MEMORY: Labels[ClusterCard] = (
    ("device_memory_limit", "devicememorylimit", lambda c: c.memory_mib),
)
_TYPE: Labels[ClusterCard] = (("device_type", "devicetype", lambda c: c.type),)
_CARDS: tuple[_Gauge[ClusterCard], ...] = (
    _Gauge(
        "hami_gpu_memory_limit_bytes",
        "GPUDeviceMemoryLimit",
        "Memory of the card",
        _NODE + _TYPE,
        lambda c: c.memory_mib * MIB,
    ),
    _Gauge(
        "hami_gpu_core_limit_ratio",
        "GPUDeviceCoreLimit",
        "Cores of the card, percent (0-100)",
        _NODE + _TYPE,
        lambda c: c.core_percent,
    ),
    _Gauge(
        "hami_gpu_memory_allocated_bytes",
        "GPUDeviceMemoryAllocated",
        "Memory granted on the card",
        _NODE + _CORES + _TYPE,
        lambda c: c.used_memory_mib * MIB,
    ),
    _Gauge(
        "hami_gpu_shared_count",
        "GPUDeviceSharedNum",
        "Containers that share the card",
        _NODE + _TYPE,
        lambda c: c.used_slots,
    ),
    _Gauge(
        "hami_gpu_core_allocated_ratio",
        "GPUDeviceCoreAllocated",
        "Cores granted on the card, percent (0-100)",
        _NODE + _TYPE,
        lambda c: c.used_core_percent,
    ),
    _Gauge(
        "hami_node_gpu_overview",
        "nodeGPUOverview",
        "Memory granted on the card, with its capacities as labels",
        _NODE + _CORES + _MEMORY + _TYPE,
        lambda c: c.used_memory_mib * MIB,
    ),
    _Gauge(
        "hami_node_gpu_memory_allocated_ratio",
        "nodeGPUMemoryPercentage",
        "Share of the card's memory that is granted, 0 to 1",
        _NODE + _TYPE,
        lambda c: c.used_memory_mib / c.memory_mib if c.memory_mib > 0 else None,
        _NODE,
    ),
)
_OF_CARD: Labels[ClusterMigInstance] = (
    ("node", "nodeid", lambda i: i.node),
    ("device_uuid", "deviceuuid", lambda i: i.device_uuid),
    ("device_index", "deviceidx", lambda i: i.device_index),
)
_INSTANCE: _Gauge[ClusterMigInstance] = _Gauge(
    "hami_node_gpu_mig_instance_info",
    "nodeGPUMigInstance",
    "A MIG instance that was made for a pod that holds it",
    (
        *_OF_CARD,
        ("mig_uuid", "", lambda i: i.mig_uuid),
        ("profile", "", lambda i: i.profile),
        ("gpu_instance_id", "", lambda i: i.gpu_instance_id),
        ("compute_instance_id", "", lambda i: i.compute_instance_id),
        ("placement_start", "", lambda i: i.start),
        ("placement_size", "", lambda i: i.size),
    ),
    lambda i: 1,
    (*_OF_CARD, ("", "migname", lambda i: f"{i.profile}-{i.gpu_instance_id}")),
)
_SLICE: Labels[PodSlice] = (
    ("namespace", "podnamespace", lambda s: s.namespace),
    ("node", "nodename", lambda s: s.node),
    ("pod", "podname", lambda s: s.pod_name),
    # HAMi counts containers of the collapsed list, so its container_index is always 0.
    ("container_index", "containeridx", lambda s: 0),
    ("device_uuid", "deviceuuid", lambda s: s.device_uuid),
)
_SLICES: tuple[_Gauge[PodSlice], ...] = (
    _Gauge(
        "hami_vgpu_memory_allocated_bytes",
        "vGPUMemoryAllocated",
        "Memory of the card that the pod holds",
        _SLICE,
        lambda s: s.memory_mib * MIB,
    ),
    _Gauge(
        "hami_vgpu_core_allocated_ratio",
        "vGPUCoreAllocated",
        "Cores of the card that the pod holds, percent (0-100)",
        _SLICE,
        lambda s: s.core_percent,
    ),
)
_QUOTA: Labels[Quota] = (
    ("namespace", "quotanamespace", lambda q: q.namespace),
    ("quota_name", "quotaName", lambda q: q.resource),
)
_QUOTAS: tuple[_Gauge[Quota], ...] = (
    _Gauge(
        "hami_resource_quota_used",
        "QuotaUsed",
        "Granted against the quota, in the resource's own unit",
        (*_QUOTA, ("limit", "limit", lambda q: q.limit or 0)),
        lambda q: q.used,
    ),
    _Gauge(
        "hami_resource_quota_limit",
        "",
        "The quota, in the resource's own unit",
        _QUOTA,
        lambda q: q.limit,
    ),
)


def hami_families(snapshot: ClusterSnapshot, *, older: bool = False) -> Iterator[Metric]:
    """Yield HAMi's scheduler families; `older`: with their names from before 2.6."""
    yield from _families(_CARDS, snapshot.cards, older)
    yield from _families((_INSTANCE,), snapshot.instances, older)
    yield from _families(_SLICES, snapshot.slices, older)
    yield from _families(_QUOTAS, snapshot.quotas, older)


def _families(gauges: Iterable[_Gauge[T]], things: Iterable[T], older: bool) -> Iterator[Metric]:
    for each in gauges:
        if each.older_name or not older:
            yield each.family(things, older=older)


ZONE = "vGPU"
CARD = ("node", "device_uuid", "device_index", "device_type")
MIB = 1024 * 1024

Samples = Iterable[tuple[Sequence[str], float]]


def card_labels(card: ClusterCard) -> tuple[str, str, str, str]:
    """Return the values of the labels in `CARD`."""
    return (card.node, card.uuid, str(card.index), card.type)


def zoned_gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a gauge with HAMi's label `zone` before the others."""
    zoned = [((ZONE, *values), value) for values, value in samples]
    return gauge(name, text, ("zone", *labels), zoned)


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a gauge; `samples`: values of the labels, and of the sample."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family
