"""The reference's page of metrics, from those that the services register and collect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hami_metrics.exposition.families import build_info, families
from hami_metrics.instruments import MetricsInstruments
from hami_scheduler.metrics import SchedulerInstruments
from hami_webhook.metrics import WebhookInstruments
from markup import table, text_of
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric


def metrics_page() -> str:
    """Every metric of every program."""
    parts = [
        "# Metrics",
        "What each number means for an operator, and what is worth an alert, is in "
        "[Monitoring](../monitoring.md).",
    ]
    snapshot = SimpleNamespace(
        cards=(),
        slices=(),
        instances=(),
        quotas=(),
        allocations_by_state={},
        allocations_by_origin={},
        claims=SimpleNamespace(held=0, holders=0),
        decisions_by_outcome={},
        pending={},
        heartbeats={},
        taken_at=None,
    )
    ledger = [*families(snapshot, now=None), build_info("1", "unknown")]  # type: ignore[arg-type]
    for title, found in (
        ("hami-scheduler, each replica", _registered_metrics(SchedulerInstruments().registry)),
        ("hami-webhook, each replica", _registered_metrics(WebhookInstruments().registry)),
        ("hami-metrics, the service", _registered_metrics(MetricsInstruments().registry)),
        ("hami-metrics, the cluster by its ledger", map(_metric, ledger)),
        ("hami-node-agent, its node", map(_metric, _of_a_node())),
    ):
        parts += [f"## {title}", table(("Metric", "Kind", "Labels", "Help"), sorted(found))]
    return "\n\n".join(parts)


def _of_a_node() -> Iterator[Metric]:
    from hami_node_agent.allocation.binding_way import BindingWay
    from hami_node_agent.devices.mig_partition import PartitionPlan
    from hami_node_agent.enforcement.checker import CheckResult
    from hami_node_agent.metrics import collectors, health, limits
    from hami_node_agent.usage.regions.reader import Regions
    from hami_node_agent.usage.sampler import Observation
    from hamicommon.process.bulkhead import Bulkhead

    nothing: Any = SimpleNamespace(
        xids_seen={},
        health_changes={},
        devices=tuple,
        to_remove=0,
        removal_failures={},
        cards=(),
        done={},
        restored={},
        problem="",
        latest=PartitionPlan(),
    )
    yield from collectors.NodeCollector(Observation, list, node="", version="").collect()
    yield from health.region_families(Regions(Path("/nonexistent")))
    yield from health.card_families(nothing, node="")
    yield from health.binding_families(BindingWay(late=False, reason=""))
    yield from health.bulkhead_families(Bulkhead())
    yield from health.removal_families(nothing)
    yield from health.file_families(nothing)
    yield from health.authority_families({})
    yield from limits.LimitCollector(CheckResult, lambda _uid: None, stale_s=1.0).collect()
    yield from health.mig_families(nothing)


def _registered_metrics(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    for collector in list(registry._collector_to_names):
        labels = tuple(getattr(collector, "_labelnames", ()))
        for metric in collector.collect():
            yield _metric(metric, labels)


def _metric(metric: Metric, labels: Iterable[str] = ()) -> tuple[str, ...]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    found = [*labels] or [*getattr(metric, "_labelnames", ())]
    return (
        f"`{name}`",
        metric.type,
        ", ".join(f"`{each}`" for each in found),
        text_of(metric.documentation),
    )
