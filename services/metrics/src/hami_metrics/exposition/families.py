"""Metric families of the ledger: HAMi's scheduler names, and some of our own. Pure.

Input: a `ClusterSnapshot` and the present time. Output: metric families, rendered on scrape. HAMi's
names carry its constant label zone="vGPU" (protocol 4.10), so its dashboards and alerts keep
working. Unknown values are absent: no snapshot, no samples.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from hamicommon.domain.allocations import LIVE_STATES, Origin
from hamicommon.placement.rules import REASON_LABELS, reason_label
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_metrics.domain.capacity import fitting_pods, unallocatable_bytes
from hami_metrics.domain.cluster import ClusterSnapshot, PendingAge, silent_nodes
from hami_metrics.exposition.hami_names import CARD, card_labels, gauge, hami_families


def ledger_families(snapshot: ClusterSnapshot, now: datetime) -> Iterator[Metric]:
    """Yield metrics of cards, allocations, decisions and heartbeats."""
    yield gauge(
        "hami_gpu_shared_containers",
        "Containers that share the card, as hami_gpu_shared_count",
        CARD,
        [(card_labels(card), card.used_slots) for card in snapshot.cards],
    )
    yield gauge(
        "hami_device_core_allocated_ratio",
        "Share of the card's cores that is granted, 0-1",
        CARD,
        [
            (card_labels(card), card.used_core_percent / card.core_percent)
            for card in snapshot.cards
            if card.core_percent > 0
        ],
    )
    yield gauge(
        "hami_gpu_healthy",
        "1 while the node-agent reports the card healthy, else 0",
        CARD,
        [(card_labels(card), float(card.healthy)) for card in snapshot.cards],
    )
    # The ledger was read: a state that no row is in counts 0, and its series never breaks off.
    by_state = dict.fromkeys(LIVE_STATES, 0) | dict(snapshot.allocations_by_state)
    yield gauge(
        "hami_allocations",
        "Live allocations by state",
        ("state",),
        [((state,), count) for state, count in sorted(by_state.items())],
    )
    yield from _front_ends(snapshot)
    yield gauge(
        "hami_decisions_last_5m",
        "Placement decisions of the last five minutes by outcome, repeats counted",
        ("outcome",),
        [((name,), count) for name, count in sorted(snapshot.decisions_by_outcome.items())],
    )
    yield gauge(
        "hami_agent_last_heartbeat_timestamp_seconds",
        "When the node-agent's last report reached the ledger (Unix time)",
        ("node",),
        [((node,), at.timestamp()) for node, at in sorted(snapshot.heartbeats.items())],
    )
    yield gauge(
        "hami_node_agent_heartbeat_age_seconds",
        "Time since the node-agent's last report reached the ledger",
        ("node",),
        [
            ((node,), max(0.0, (now - at).total_seconds()))
            for node, at in sorted(snapshot.heartbeats.items())
        ],
    )


def _front_ends(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    """Yield the counts of pods by the way in which they got their cards."""
    by_origin = dict.fromkeys(map(str, Origin), 0) | dict(snapshot.allocations_by_origin)
    yield gauge(
        "hami_allocations_by_origin",
        "Live allocations by how they came: scheduled (limits), claim (ResourceClaims), adopted, "
        "unmanaged",
        ("origin",),
        [((origin,), count) for origin, count in sorted(by_origin.items())],
    )
    yield gauge(
        "hami_held_claims",
        "ResourceClaims whose slices are granted now",
        (),
        [((), snapshot.claims.held)],
    )
    yield gauge(
        "hami_claim_holders",
        "Pods that hold those claims; more than claims where several pods name one",
        (),
        [((), snapshot.claims.holders)],
    )


def waiting_families(snapshot: ClusterSnapshot) -> Iterator[Metric]:
    """Yield metrics of waiting pods."""
    # Every series from the start: zero waiting pods is a known value.
    counts = dict.fromkeys(((reason, age) for reason in REASON_LABELS for age in PendingAge), 0)
    for (reason, age), pods in snapshot.pending.items():
        counts[reason_label(reason), age] += pods
    yield gauge(
        "hami_pending_pods",
        "Refused pods that still exist and are not placed, by the reason that most nodes had "
        "and for how long they wait",
        ("reason", "age"),
        [((reason, age.value), pods) for (reason, age), pods in sorted(counts.items())],
    )


def capacity_families(snapshot: ClusterSnapshot, now: datetime) -> Iterator[Metric]:
    """Yield metrics of what still fits, and of free memory that no pod can get."""
    silent = silent_nodes(snapshot, now)
    yield gauge(
        "hami_capacity_fitting_pods",
        "How many more pods of a class fit now: slices of 8 or 40 GiB, idle cards, nodes with "
        "eight idle cards",
        ("request_class",),
        [((one.value,), n) for one, n in fitting_pods(snapshot.cards, silent).items()],
    )
    yield gauge(
        "hami_capacity_unallocatable_bytes",
        "Memory that is free and that no pod can have: its card has no slot or no cores left, is "
        "sick, cordoned, or on a node whose agent is silent",
        (),
        [((), unallocatable_bytes(snapshot.cards, silent))],
    )


class LedgerCollector(Collector):
    """Collector of the newest snapshot at each scrape."""

    def __init__(
        self,
        newest: Callable[[], ClusterSnapshot | None],
        clock: Callable[[], datetime],
        *,
        older_names: bool = False,
    ) -> None:
        self._newest = newest
        self._clock = clock
        self._older_names = older_names

    def describe(self) -> Iterable[Metric]:
        """Return none: the set of families depends on the snapshot at the scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield all families, or none while the ledger is unknown."""
        snapshot = self._newest()
        if snapshot is not None:
            yield from families(snapshot, now=self._clock())
            if self._older_names:
                yield from hami_families(snapshot, older=True)


def families(snapshot: ClusterSnapshot, *, now: datetime) -> Iterator[Metric]:
    """Yield all families of the ledger."""
    yield from hami_families(snapshot)
    yield from ledger_families(snapshot, now)
    yield from waiting_families(snapshot)
    yield from capacity_families(snapshot, now)


def build_info(version: str, revision: str) -> Metric:
    """Return HAMi's `hami_build_info` (without zone), with our version in its labels."""
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
