"""HAMi's scheduler names of before 2.6, for dashboards that still ask for them (`legacy_metrics`).

Same numbers as in `hami_names.py`, other names and labels. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from hami_metrics.domain.cluster import ClusterCard, ClusterMigInstance, ClusterSnapshot, PodSlice
from hami_metrics.exposition.gauges import MIB, Samples, zoned_gauge

_CARD = ("nodeid", "deviceuuid", "deviceidx")
_TYPED = (*_CARD, "devicetype")
_WITH_CORES = (*_CARD, "devicecores", "devicetype")
_OVERVIEW = (*_CARD, "devicecores", "devicememorylimit", "devicetype")
_SLICE = ("podnamespace", "nodename", "podname", "containeridx", "deviceuuid")


def older_families(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    """Every family of HAMi's scheduler by its older name."""
    yield from _cards(snapshot.cards)
    yield _instances(snapshot.instances)
    yield from _slices(snapshot.slices)
    yield zoned_gauge(
        "QuotaUsed",
        "As hami_resource_quota_used",
        ("quotanamespace", "quotaName", "limit"),
        [((q.namespace, q.resource, str(q.limit or 0)), q.used) for q in snapshot.quotas],
    )


def _of(card: ClusterCard) -> tuple[str, str, str]:
    return (card.node, card.uuid, str(card.index))


def _cards(cards: Sequence[ClusterCard]) -> Iterator[Metric]:
    def typed(value: Callable[[ClusterCard], float]) -> Samples:
        return [((*_of(card), card.type), value(card)) for card in cards]

    plain: tuple[tuple[str, str, Callable[[ClusterCard], float]], ...] = (
        ("GPUDeviceMemoryLimit", "hami_gpu_memory_limit_bytes", lambda c: c.memory_mib * MIB),
        ("GPUDeviceCoreLimit", "hami_gpu_core_limit_ratio", lambda c: c.core_percent),
        ("GPUDeviceSharedNum", "hami_gpu_shared_count", lambda c: c.used_slots),
        ("GPUDeviceCoreAllocated", "hami_gpu_core_allocated_ratio", lambda c: c.used_core_percent),
    )
    for name, today, value in plain:
        yield zoned_gauge(name, f"As {today}", _TYPED, typed(value))
    yield zoned_gauge(
        "GPUDeviceMemoryAllocated",
        "As hami_gpu_memory_allocated_bytes",
        _WITH_CORES,
        [((*_of(c), str(c.core_percent), c.type), c.used_memory_mib * MIB) for c in cards],
    )
    yield zoned_gauge(
        "nodeGPUOverview",
        "As hami_node_gpu_overview",
        _OVERVIEW,
        [
            ((*_of(c), str(c.core_percent), str(c.memory_mib), c.type), c.used_memory_mib * MIB)
            for c in cards
        ],
    )
    yield zoned_gauge(
        "nodeGPUMemoryPercentage",
        "As hami_node_gpu_memory_allocated_ratio",
        _CARD,
        [(_of(c), c.used_memory_mib / c.memory_mib) for c in cards if c.memory_mib > 0],
    )


def _instances(instances: Sequence[ClusterMigInstance]) -> Metric:
    return zoned_gauge(
        "nodeGPUMigInstance",
        "As hami_node_gpu_mig_instance_info",
        (*_CARD, "migname"),
        [
            (
                (
                    *(one.node, one.device_uuid, str(one.device_index)),
                    f"{one.profile}-{one.gpu_instance_id}",
                ),
                1,
            )
            for one in instances
        ],
    )


def _slices(slices: Sequence[PodSlice]) -> Iterator[Metric]:
    labelled = [((s.namespace, s.node, s.pod_name, "0", s.device_uuid), s) for s in slices]
    yield zoned_gauge(
        "vGPUMemoryAllocated",
        "As hami_vgpu_memory_allocated_bytes",
        _SLICE,
        [(labels, item.memory_mib * MIB) for labels, item in labelled],
    )
    yield zoned_gauge(
        "vGPUCoreAllocated",
        "As hami_vgpu_core_allocated_ratio",
        _SLICE,
        [(labels, item.core_percent) for labels, item in labelled],
    )
