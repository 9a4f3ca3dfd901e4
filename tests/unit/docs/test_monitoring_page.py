"""docs/monitoring.md has lines for metrics that exist, and each older name of HAMi's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hami_scheduler.metrics import SchedulerInstruments
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric

from tests.metric_registry import legacy, list_declared
from tests.metric_registry import names as declared_names

PAGE = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"


def names(found: Iterable[Metric]) -> set[str]:
    return {f"{m.name}_total" if m.type == "counter" else m.name for m in found}


def list_described() -> set[str]:
    return set(re.findall(r"^\| `(hami_\w+)` \|", PAGE.read_text(), re.MULTILINE))


def test_the_page_has_lines_for_metrics_that_exist() -> None:
    assert list_described()
    assert list_described() <= declared_names()


def test_the_page_names_every_older_metric() -> None:
    page = PAGE.read_text()

    for name in names(legacy()):
        assert f"`{name}`" in page, name


OTHER_NAMES = re.compile(
    r"hami_(?:reader|scheduler|metrics|webhook|node_agent|ledger|forget_grants)"
)
"""Roles and functions of Postgres, folders and modules."""


def test_no_page_names_a_metric_that_nobody_exposes() -> None:
    known = {series for each in list_declared() for series in each.series} | names(legacy())
    for page in (PAGE.parents[1] / "README.md", *PAGE.parent.rglob("*.md")):
        for name in re.findall(r"(?<![\w:])hami_\w+", page.read_text()):
            if not OTHER_NAMES.fullmatch(name) and not name.endswith("_"):
                assert name in known, (page.name, name)


def test_what_only_rises_is_a_counter() -> None:
    instruments = SchedulerInstruments()
    instruments.decisions_dropped.set(3)
    instruments.decisions_dropped.set(2)

    page = generate_latest(instruments.registry).decode()

    assert "# TYPE hami_scheduler_decisions_dropped_total counter" in page
    assert "hami_scheduler_decisions_dropped_total 3.0" in page
    for name in ("events_dropped", "outbox_published", "dead_letters"):
        assert f"# TYPE hami_scheduler_{name}_total counter" in page
