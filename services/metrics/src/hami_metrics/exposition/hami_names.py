"""The families that HAMi's scheduler has, by its names (protocol 4.10). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from hami_metrics.domain.cluster import ClusterCard, ClusterMigInstance, PodSlice, Quota
from hami_metrics.exposition.gauges import CARD, MIB, Samples, card_labels, zoned_gauge

_OVERVIEW = (*CARD[:3], "device_cores", "device_memory_limit", "device_type")
_INSTANCE = (
    *("node", "device_uuid", "device_index", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
)
_SLICE = ("namespace", "node", "pod", "container_index", "device_uuid")


def card_families(cards: Sequence[ClusterCard]) -> Iterator[Metric]:
    """Capacity and grants of each card."""

    def each(value: Callable[[ClusterCard], float]) -> Samples:
        return [(card_labels(card), value(card)) for card in cards]

    with_cores = ("node", "device_uuid", "device_index", "device_cores", "device_type")
    used = [
        ((*(labels := card_labels(c))[:3], str(c.core_percent), labels[3]), c.used_memory_mib)
        for c in cards
    ]
    yield zoned_gauge(
        "hami_gpu_memory_limit_bytes",
        "Memory of the card",
        CARD,
        each(lambda card: card.memory_mib * MIB),
    )
    yield zoned_gauge(
        "hami_gpu_core_limit_ratio",
        "Cores of the card, percent (0-100)",
        CARD,
        each(lambda card: card.core_percent),
    )
    yield zoned_gauge(
        "hami_gpu_memory_allocated_bytes",
        "Memory granted on the card",
        with_cores,
        [(labels, mib * MIB) for labels, mib in used],
    )
    yield zoned_gauge(
        "hami_gpu_shared_count",
        "Containers that share the card",
        CARD,
        each(lambda card: card.used_slots),
    )
    yield zoned_gauge(
        "hami_gpu_core_allocated_ratio",
        "Cores granted on the card, percent (0-100)",
        CARD,
        each(lambda card: card.used_core_percent),
    )
    yield _overview(cards)
    yield zoned_gauge(
        "hami_node_gpu_memory_allocated_ratio",
        "Share of the card's memory that is granted, 0 to 1",
        CARD,
        [
            (card_labels(card), card.used_memory_mib / card.memory_mib)
            for card in cards
            if card.memory_mib > 0
        ],
    )


def _overview(cards: Sequence[ClusterCard]) -> Metric:
    return zoned_gauge(
        "hami_node_gpu_overview",
        "Memory granted on the card, with its capacities as labels",
        _OVERVIEW,
        [
            (
                (c.node, c.uuid, str(c.index), str(c.core_percent), str(c.memory_mib), c.type),
                c.used_memory_mib * MIB,
            )
            for c in cards
        ],
    )


def instance_family(instances: Sequence[ClusterMigInstance]) -> Metric:
    """MIG instances with a pod."""
    return zoned_gauge(
        "hami_node_gpu_mig_instance_info",
        "A MIG instance that was made for a pod that holds it",
        _INSTANCE,
        [
            (
                (
                    *(one.node, one.device_uuid, str(one.device_index), one.mig_uuid, one.profile),
                    *map(str, (one.gpu_instance_id, one.compute_instance_id, one.start, one.size)),
                ),
                1,
            )
            for one in instances
        ],
    )


def slice_families(slices: Sequence[PodSlice]) -> Iterator[Metric]:
    """Yield gauges of what each pod holds of each card."""
    # HAMi counts containers of the collapsed list, so its container_index is always 0.
    labelled = [((s.namespace, s.node, s.pod_name, "0", s.device_uuid), s) for s in slices]
    yield zoned_gauge(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of the card that the pod holds",
        _SLICE,
        [(labels, item.memory_mib * MIB) for labels, item in labelled],
    )
    yield zoned_gauge(
        "hami_vgpu_core_allocated_ratio",
        "Cores of the card that the pod holds, percent (0-100)",
        _SLICE,
        [(labels, item.core_percent) for labels, item in labelled],
    )


def quota_families(quotas: Sequence[Quota]) -> Iterator[Metric]:
    """Yield gauges of what is granted of each quota."""
    yield zoned_gauge(
        "hami_resource_quota_used",
        "Granted against the quota, in the resource's own unit",
        ("namespace", "quota_name", "limit"),
        [((q.namespace, q.resource, str(q.limit or 0)), q.used) for q in quotas],
    )
    yield zoned_gauge(
        "hami_resource_quota_limit",
        "The quota, in the resource's own unit",
        ("namespace", "quota_name"),
        [((q.namespace, q.resource), q.limit) for q in quotas if q.limit is not None],
    )
