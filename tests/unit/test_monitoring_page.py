"""docs/monitoring.md has a line for every metric that is exposed, and for no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.exposition import build_info, families
from hami_metrics.instruments import Instruments
from hami_node_agent.domain.late import BindingWay
from hami_node_agent.domain.mig_cutting import Plan
from hami_node_agent.exposition import NodeCollector
from hami_node_agent.exposition_health import BindingCollector, CardCollector, RegionCollector
from hami_node_agent.exposition_legacy import LegacyCollector
from hami_node_agent.exposition_mig import MigCollector
from hami_node_agent.regions import Regions
from hami_node_agent.usage import Observation
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
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


class NoInstances:
    cards: tuple[GpuUuid, ...] = ()
    latest: Plan | None = Plan()
    done: ClassVar[dict[tuple[str, str], int]] = {}


def names(found: Iterable[Metric]) -> set[str]:
    return {f"{m.name}_total" if m.type == "counter" else m.name for m in found}


def test_the_page_has_a_line_for_every_metric_and_no_other(tmp_path: Path) -> None:
    node = NodeCollector(Observation, list, node="n", version="1")
    exposed = names(node.collect()) | names(RegionCollector(Regions(tmp_path)).collect())
    exposed |= names(CardCollector(NoCards()).collect())
    exposed |= names(BindingCollector(BindingWay(late=False, reason="")).collect())
    exposed |= names(MigCollector(NoInstances()).collect())
    exposed |= names(families(EMPTY, now=EMPTY.taken_at))
    exposed |= names([build_info("1", "unknown")]) | names(Instruments().registry.collect())

    told = re.findall(r"^\| `(hami_\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert set(told) == exposed


def test_the_page_names_every_older_metric() -> None:
    page = PAGE.read_text()

    for name in names(LegacyCollector(Observation, list, node="n").collect()):
        assert f"`{name}`" in page, name
