"""docs/monitoring.md has a line for every metric that is exposed, and for no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.exposition import build_info, families
from hami_metrics.instruments import MetricsInstruments
from hami_node_agent.allocation.late_binding_rules import BindingWay
from hami_node_agent.devices.mig_partition import PartitionPlan
from hami_node_agent.enforcement.checker import Checked
from hami_node_agent.metrics.collectors import NodeCollector
from hami_node_agent.metrics.health import (
    AuthorityCollector,
    BindingCollector,
    BulkheadCollector,
    CardCollector,
    RegionCollector,
    RemovalCollector,
)
from hami_node_agent.metrics.legacy import LegacyCollector
from hami_node_agent.metrics.limits import LimitCollector
from hami_node_agent.metrics.mig import MigCollector
from hami_node_agent.usage.regions.directory import Regions
from hami_node_agent.usage.sampler import Observation
from hami_scheduler.metrics import SchedulerInstruments
from hami_webhook.metrics import WebhookInstruments
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.process.bulkhead import Bulkhead
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

PAGE = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
EMPTY = ClusterSnapshot(
    taken_at=datetime(2026, 1, 1, tzinfo=UTC),
    cards=(),
    slices=(),
    instances=(),
    quotas=(),
    allocations_by_state={},
    decisions_by_outcome={},
    pending_pods=0,
    pending_by_reason={},
    heartbeats={},
)


class NoCards:
    xids_seen: ClassVar[dict[tuple[str, int, bool], int]] = {}

    def devices(self) -> tuple[GpuDevice, ...]:
        return ()


class NoLeftovers:
    to_remove = 0
    removal_failures: ClassVar[dict[str, int]] = {}


class NoInstances:
    cards: tuple[GpuUuid, ...] = ()
    latest: PartitionPlan | None = PartitionPlan()
    done: ClassVar[dict[tuple[str, str], int]] = {}


def names(found: Iterable[Metric]) -> set[str]:
    return {f"{m.name}_total" if m.type == "counter" else m.name for m in found}


def test_the_page_has_a_line_for_every_metric_and_no_other(tmp_path: Path) -> None:
    node = NodeCollector(Observation, list, node="n", version="1")
    exposed = names(node.collect()) | names(RegionCollector(Regions(tmp_path)).collect())
    exposed |= names(CardCollector(NoCards()).collect())
    exposed |= names(BindingCollector(BindingWay(late=False, reason="")).collect())
    exposed |= names(BulkheadCollector(Bulkhead()).collect())
    exposed |= names(RemovalCollector(NoLeftovers()).collect())
    exposed |= names(AuthorityCollector({}).collect())
    exposed |= names(LimitCollector(Checked, lambda _uid: None, stale_s=1.0).collect())
    exposed |= names(MigCollector(NoInstances()).collect())
    exposed |= names(families(EMPTY, now=EMPTY.taken_at))
    exposed |= names([build_info("1", "unknown")]) | names(MetricsInstruments().registry.collect())

    described = re.findall(r"^\| `(hami_\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert set(described) == exposed


def test_the_page_names_every_older_metric() -> None:
    page = PAGE.read_text()

    for name in names(LegacyCollector(Observation, list, node="n").collect()):
        assert f"`{name}`" in page, name


OTHER_NAMES = re.compile(
    r"hami_(?:reader|scheduler|metrics|webhook|node_agent|ledger|forget_grants)"
)
"""Roles and functions of Postgres, folders and modules."""
PARTS = ("", "_bucket", "_count", "_sum")


def test_no_page_names_a_metric_that_nobody_exposes(tmp_path: Path) -> None:
    exposed = set(re.findall(r"^\| `(hami_\w+)` \|", PAGE.read_text(), re.MULTILINE))
    exposed |= names(LegacyCollector(Observation, list, node="n").collect())
    exposed |= names(SchedulerInstruments().registry.collect())
    exposed |= names(WebhookInstruments().registry.collect())

    known = {f"{name}{part}" for name in exposed for part in PARTS}
    for page in (PAGE.parents[1] / "README.md", *PAGE.parent.rglob("*.md")):
        for name in re.findall(r"\bhami_\w+", page.read_text()):
            if not OTHER_NAMES.fullmatch(name) and not name.endswith("_"):
                assert name in known, (page.name, name)


def test_what_only_rises_is_a_counter() -> None:
    instruments = SchedulerInstruments()
    instruments.lock_fallbacks.set(3)
    instruments.lock_fallbacks.set(2)

    page = generate_latest(instruments.registry).decode()

    assert "# TYPE hami_scheduler_lock_fallbacks_total counter" in page
    assert "hami_scheduler_lock_fallbacks_total 3.0" in page
    for name in ("decisions_dropped", "events_dropped", "outbox_published", "dead_letters"):
        assert f"# TYPE hami_scheduler_{name}_total counter" in page
