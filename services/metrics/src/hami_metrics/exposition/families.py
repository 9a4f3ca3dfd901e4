"""The ledger as Prometheus samples: HAMi's scheduler names, and a few of our own. Pure.

In: a `ClusterSnapshot` and the present moment. Out: metric families, rendered on scrape. HAMi's
names carry its constant label zone="vGPU" (protocol 4.10), so its dashboards and alerts go
on. What is not known is absent: no snapshot, no samples.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.exposition.hami_names import hami_families
from hami_metrics.exposition.own_names import capacity_families, ledger_families, waiting_families


class LedgerCollector(Collector):
    """Renders the newest snapshot at each scrape."""

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
        """Nothing to declare: what is unknown is absent."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, or none while the ledger is unknown."""
        snapshot = self._newest()
        if snapshot is not None:
            yield from families(snapshot, now=self._clock())
            if self._older_names:
                yield from hami_families(snapshot, older=True)


def families(snapshot: ClusterSnapshot, *, now: datetime) -> Iterator[Metric]:
    """Every family of the cluster's page."""
    yield from hami_families(snapshot)
    yield from ledger_families(snapshot, now)
    yield from waiting_families(snapshot)
    yield from capacity_families(snapshot, now)


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
