"""The ledger as Prometheus samples: HAMi's scheduler names, and a few of our own. Pure.

In: a `ClusterSnapshot` and the present moment. Out: metric families, rendered on scrape. HAMi's
names carry its constant label zone="vGPU" (protocol 4.10), so its dashboards and alerts go
on. What is not known is absent: no snapshot, no samples.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from hamicommon.domain.allocations import LIVE_STATES
from hamicommon.placement.rules import REASON_LABELS, reason_label
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_metrics.domain.capacity import fitting_pods, unallocatable_bytes
from hami_metrics.domain.cluster import (
    ClusterCard,
    ClusterMigInstance,
    ClusterSnapshot,
    PendingAge,
    PodSlice,
    Quota,
    silent_nodes,
)

ZONE = "vGPU"
_MIB = 1024 * 1024

_CARD = ("node", "device_uuid", "device_index", "device_type")
_OVERVIEW = (*_CARD[:3], "device_cores", "device_memory_limit", "device_type")
_INSTANCE = (
    *("node", "device_uuid", "device_index", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
)
_SLICE = ("namespace", "node", "pod", "container_index", "device_uuid")

Samples = Iterable[tuple[Sequence[str], float]]


class LedgerCollector(Collector):
    """Renders the newest snapshot at each scrape."""

    def __init__(
        self, newest: Callable[[], ClusterSnapshot | None], clock: Callable[[], datetime]
    ) -> None:
        self._newest = newest
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing to declare: what is unknown is absent."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, or none while the ledger is unknown."""
        snapshot = self._newest()
        if snapshot is not None:
            yield from families(snapshot, now=self._clock())


def families(snapshot: ClusterSnapshot, *, now: datetime) -> Iterator[Metric]:
    """Every family of the cluster's page."""
    yield from _cards(snapshot.cards)
    yield _instances(snapshot.instances)
    yield from _slices(snapshot.slices)
    yield from _quotas(snapshot.quotas)
    yield from _ours(snapshot, now)
    yield from _waiting(snapshot)
    yield from _capacity(snapshot, now)


def build_info(version: str, revision: str) -> Metric:
    """HAMi's `hami_build_info` (without zone); its Go labels name what we are instead."""
    labels = {
        "version": version,
        "revision": revision,
        "build_date": "unknown",
        "go_version": "none",
        "compiler": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }
    family = GaugeMetricFamily("hami_build_info", "What is running", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _cards(cards: Sequence[ClusterCard]) -> Iterator[Metric]:
    def each(value: Callable[[ClusterCard], float]) -> Samples:
        return [(_card_labels(card), value(card)) for card in cards]

    with_cores = ("node", "device_uuid", "device_index", "device_cores", "device_type")
    used = [
        ((*(labels := _card_labels(c))[:3], str(c.core_percent), labels[3]), c.used_memory_mib)
        for c in cards
    ]
    yield _hami(
        "hami_gpu_memory_limit_bytes",
        "Memory of the card",
        _CARD,
        each(lambda card: card.memory_mib * _MIB),
    )
    yield _hami(
        "hami_gpu_core_limit_ratio",
        "Cores of the card, percent (0-100)",
        _CARD,
        each(lambda card: card.core_percent),
    )
    yield _hami(
        "hami_gpu_memory_allocated_bytes",
        "Memory granted on the card",
        with_cores,
        [(labels, mib * _MIB) for labels, mib in used],
    )
    yield _hami(
        "hami_gpu_shared_count",
        "Containers that share the card",
        _CARD,
        each(lambda card: card.used_slots),
    )
    yield _hami(
        "hami_gpu_core_allocated_ratio",
        "Cores granted on the card, percent (0-100)",
        _CARD,
        each(lambda card: card.used_core_percent),
    )
    yield _overview(cards)
    yield _hami(
        "hami_node_gpu_memory_allocated_ratio",
        "Share of the card's memory that is granted, 0 to 1",
        _CARD,
        [
            (_card_labels(card), card.used_memory_mib / card.memory_mib)
            for card in cards
            if card.memory_mib > 0
        ],
    )


def _overview(cards: Sequence[ClusterCard]) -> Metric:
    return _hami(
        "hami_node_gpu_overview",
        "Memory granted on the card, with its capacities as labels",
        _OVERVIEW,
        [
            (
                (c.node, c.uuid, str(c.index), str(c.core_percent), str(c.memory_mib), c.type),
                c.used_memory_mib * _MIB,
            )
            for c in cards
        ],
    )


def _instances(instances: Sequence[ClusterMigInstance]) -> Metric:
    return _hami(
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


def _slices(slices: Sequence[PodSlice]) -> Iterator[Metric]:
    # HAMi counts containers of the collapsed list, so its container_index is always 0.
    labelled = [((s.namespace, s.node, s.pod_name, "0", s.device_uuid), s) for s in slices]
    yield _hami(
        "hami_vgpu_memory_allocated_bytes",
        "Memory of the card that the pod holds",
        _SLICE,
        [(labels, item.memory_mib * _MIB) for labels, item in labelled],
    )
    yield _hami(
        "hami_vgpu_core_allocated_ratio",
        "Cores of the card that the pod holds, percent (0-100)",
        _SLICE,
        [(labels, item.core_percent) for labels, item in labelled],
    )


def _quotas(quotas: Sequence[Quota]) -> Iterator[Metric]:
    yield _hami(
        "hami_resource_quota_used",
        "Granted against the quota, in the resource's own unit",
        ("namespace", "quota_name", "limit"),
        [((q.namespace, q.resource, str(q.limit or 0)), q.used) for q in quotas],
    )
    yield _hami(
        "hami_resource_quota_limit",
        "The quota, in the resource's own unit",
        ("namespace", "quota_name"),
        [((q.namespace, q.resource), q.limit) for q in quotas if q.limit is not None],
    )


def _ours(snapshot: ClusterSnapshot, now: datetime) -> Iterator[Metric]:
    yield _gauge(
        "hami_gpu_shared_containers",
        "Containers that share the card, as hami_gpu_shared_count",
        _CARD,
        [(_card_labels(card), card.used_slots) for card in snapshot.cards],
    )
    yield _gauge(
        "hami_device_core_allocated_ratio",
        "Share of the card's cores that is granted, 0-1",
        _CARD,
        [
            (_card_labels(card), card.used_core_percent / card.core_percent)
            for card in snapshot.cards
            if card.core_percent > 0
        ],
    )
    yield _gauge(
        "hami_gpu_healthy",
        "1 while the node-agent reports the card healthy, else 0",
        _CARD,
        [(_card_labels(card), float(card.healthy)) for card in snapshot.cards],
    )
    # The ledger was read: a state that no row is in counts 0, and its series never breaks off.
    by_state = dict.fromkeys(LIVE_STATES, 0) | dict(snapshot.allocations_by_state)
    yield _gauge(
        "hami_allocations",
        "Live allocations by state",
        ("state",),
        [((state,), count) for state, count in sorted(by_state.items())],
    )
    yield _gauge(
        "hami_decisions_last_5m",
        "Placement decisions of the last five minutes by outcome, repeats counted",
        ("outcome",),
        [((name,), count) for name, count in sorted(snapshot.decisions_by_outcome.items())],
    )
    yield _gauge(
        "hami_agent_last_heartbeat_timestamp_seconds",
        "When the node-agent's last report reached the ledger (Unix time)",
        ("node",),
        [((node,), at.timestamp()) for node, at in sorted(snapshot.heartbeats.items())],
    )
    yield _gauge(
        "hami_node_agent_heartbeat_age_seconds",
        "Time since the node-agent's last report reached the ledger",
        ("node",),
        [
            ((node,), max(0.0, (now - at).total_seconds()))
            for node, at in sorted(snapshot.heartbeats.items())
        ],
    )


def _waiting(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    # Every series from the start on: that nobody waits is known, and 0.
    counts = dict.fromkeys(((reason, age) for reason in REASON_LABELS for age in PendingAge), 0)
    for (reason, age), pods in snapshot.pending.items():
        counts[reason_label(reason), age] += pods
    yield _gauge(
        "hami_pending_pods",
        "Pods that were refused lately and not placed since, by the reason that the most nodes "
        "gave and for how long they wait",
        ("reason", "age"),
        [((reason, age.value), pods) for (reason, age), pods in sorted(counts.items())],
    )


def _capacity(snapshot: ClusterSnapshot, now: datetime) -> Iterator[Metric]:
    silent = silent_nodes(snapshot, now)
    yield _gauge(
        "hami_capacity_fitting_pods",
        "How many more pods of a class fit now: slices of 8 or 40 GiB, idle cards, nodes with "
        "eight idle cards",
        ("request_class",),
        [((one.value,), n) for one, n in fitting_pods(snapshot.cards, silent).items()],
    )
    yield _gauge(
        "hami_capacity_unallocatable_bytes",
        "Memory that is free and that no pod can have: its card has no slot or no cores left, is "
        "sick, cordoned, or on a node whose agent is silent",
        (),
        [((), unallocatable_bytes(snapshot.cards, silent))],
    )


def _card_labels(card: ClusterCard) -> tuple[str, str, str, str]:
    return (card.node, card.uuid, str(card.index), card.type)


def _hami(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    zoned = [((ZONE, *values), value) for values, value in samples]
    return _gauge(name, text, ("zone", *labels), zoned)


def _gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family
