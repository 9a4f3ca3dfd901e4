"""Every metric of every service, as its collectors declare it: what tests and boards may name."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from hami_metrics.domain.cluster import ClaimCounts, ClusterSnapshot
from hami_metrics.exposition.families import build_info, families
from hami_metrics.exposition.hami_names import hami_families
from hami_metrics.instruments import MetricsInstruments
from hami_node_agent.allocation.binding_way import BindingWay
from hami_node_agent.devices.health import HealthCause
from hami_node_agent.devices.mig_partition import PartitionPlan
from hami_node_agent.enforcement.checker import CheckResult
from hami_node_agent.metrics.collectors import NodeCollector
from hami_node_agent.metrics.health import (
    authority_families,
    binding_families,
    bulkhead_families,
    card_families,
    file_families,
    mig_families,
    region_families,
    removal_families,
)
from hami_node_agent.metrics.legacy import LegacyCollector
from hami_node_agent.metrics.limits import LimitCollector
from hami_node_agent.usage.regions.reader import Regions
from hami_node_agent.usage.sampler import Observation
from hami_scheduler.metrics import SchedulerInstruments
from hami_webhook.metrics import WebhookInstruments
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.process.bulkhead import Bulkhead
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

EMPTY = ClusterSnapshot(
    taken_at=datetime(2026, 1, 1, tzinfo=UTC),
    cards=(),
    slices=(),
    instances=(),
    quotas=(),
    allocations_by_state={},
    allocations_by_origin={},
    claims=ClaimCounts(),
    decisions_by_outcome={},
    pending={},
    heartbeats={},
)


class NoCards:
    xids_seen: ClassVar[dict[tuple[str, int, bool], int]] = {}
    health_changes: ClassVar[dict[tuple[str, HealthCause], int]] = {}

    def devices(self) -> tuple[GpuDevice, ...]:
        return ()


class NoLeftovers:
    to_remove = 0
    removal_failures: ClassVar[dict[str, int]] = {}


class NoFiles:
    restored: ClassVar[dict[str, int]] = {}
    problem = ""


class NoInstances:
    cards: tuple[GpuUuid, ...] = ()
    latest: PartitionPlan | None = PartitionPlan()
    done: ClassVar[dict[tuple[str, str], int]] = {}


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric of one service."""

    service: str
    name: str
    """Name at the beginning of its samples; with _total for a counter."""
    type: str
    text: str
    labels: frozenset[str]

    @property
    def series(self) -> tuple[str, ...]:
        """Names that an expression may have."""
        if self.type != "histogram":
            return (self.name,)
        return (self.name, *(f"{self.name}{part}" for part in ("_bucket", "_count", "_sum")))


def node_agent() -> list[Metric]:
    """Without HAMi's older names."""
    pages = (
        NodeCollector(Observation, list, node="n", version="1").collect(),
        region_families(Regions(Path("/nonexistent"))),
        card_families(NoCards(), node="n"),
        binding_families(BindingWay(late=False, reason="")),
        bulkhead_families(Bulkhead()),
        removal_families(NoLeftovers()),
        file_families(NoFiles()),
        authority_families({}),
        LimitCollector(CheckResult, lambda _uid: None, stale_s=1.0).collect(),
        mig_families(NoInstances()),
    )
    return [metric for each in pages for metric in each]


def legacy() -> list[Metric]:
    """HAMi's older names."""
    return [
        *LegacyCollector(Observation, list, node="n").collect(),
        *hami_families(EMPTY, older=True),
    ]


@cache
def list_declared() -> tuple[Declared, ...]:
    """All of them, by service."""
    found = [*_list_declared("node-agent", node_agent())]
    cluster = [*families(EMPTY, now=EMPTY.taken_at), build_info("1", "unknown")]
    found += _list_declared("metrics", cluster)
    for service, registry in (
        ("metrics", MetricsInstruments().registry),
        ("scheduler", SchedulerInstruments().registry),
        ("webhook", WebhookInstruments().registry),
    ):
        found += _read_registry(service, registry)
    return tuple(found)


def names(service: str | None = None) -> set[str]:
    """Return the metrics' names of one service, or of all."""
    return {each.name for each in list_declared() if service in (None, each.service)}


def _read_registry(service: str, registry: CollectorRegistry) -> Iterable[Declared]:
    """A client's own metric knows its labels, a family only where it was made by hand."""
    collectors: list[Any] = list(registry._collector_to_names)
    for collector in collectors:
        given = getattr(collector, "_labelnames", None)
        yield from _list_declared(service, collector.collect(), given)


def _list_declared(
    service: str, found: Iterable[Metric], labels: Iterable[str] | None = None
) -> Iterable[Declared]:
    for metric in found:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        given = getattr(metric, "_labelnames", ()) if labels is None else labels
        yield Declared(service, name, metric.type, metric.documentation, frozenset(given or ()))
