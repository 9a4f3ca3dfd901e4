"""A real Prometheus on a running local system: no rule and no panel is an error, most have data."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.conftest import Promtool
from tests.alerts.live import Prometheus, expressions, page, targets, until

pytestmark = [pytest.mark.slow, pytest.mark.integration]

Json = dict[str, Any]
KNOWN_COMPLAINT = (
    'hami_gpu_shared_count non-histogram and non-summary metrics should not have "_count" suffix'
)
"""HAMi's name, which stays."""
MAX_OWN_LINES = 10
"""Log lines of a process that are of no pod: serving, connected, its hourly rounds."""
MAX_POD_LINES = 3
"""In one service: a line for each step of the pod there."""
WITH_DATA = (
    *("outcome:hami_scheduler_decisions:rate5m", "reason:hami_pending_pods:sum"),
    *("cluster:hami_gpu_memory_allocated:ratio", "namespace:hami_vgpu_memory_allocated_bytes:sum"),
    *("hami-overview/Cards/A", "hami-overview/What fits now/A", "hami-overview/Largest holders/A"),
    *("hami-nodes/Nodes/A", "hami-nodes/Granted share by card/A", "hami-workload/Memory/A"),
    *("hami-scheduling/Decisions/A", "hami-waiting/Waiting pods by age/A"),
    "hami-internals/Usage samples/A",
)


def test_every_page_is_scraped_without_an_error(scraped: Prometheus) -> None:
    def all_up() -> bool:
        active = scraped.get("targets")["activeTargets"]
        return len(active) == 6 and all(each["health"] == "up" for each in active)

    until(all_up, "all six pages to be scraped")


def test_no_rule_and_no_panel_is_an_error_and_those_with_data_have_it(scraped: Prometheus) -> None:
    asked = expressions()
    assert set(WITH_DATA) <= asked.keys()

    def empty() -> list[str]:
        return [where for where in WITH_DATA if not scraped.query(asked[where])]

    until(lambda: not empty(), "panels to have data")
    for expr in asked.values():
        scraped.query(expr)
    rules = [rule for group in scraped.get("rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []


def test_nothing_critical_fires_on_a_healthy_system(scraped: Prometheus) -> None:
    alerts = scraped.get("alerts")["alerts"]

    assert [a["labels"] for a in alerts if a["labels"]["severity"] == "critical"] == []


def test_prometheus_keeps_an_exemplar_with_a_trace(scraped: Prometheus) -> None:
    name = "hami_scheduler_decision_duration_seconds_bucket"

    def is_kept() -> bool:
        found = scraped.get("query_exemplars", query=name, start="0", end="4102444800")
        return any(
            len(one["labels"]["trace_id"]) == 32 for each in found for one in each["exemplars"]
        )

    until(is_kept, "an exemplar")


def test_promtool_finds_no_fault_of_ours_on_the_live_pages(up: Json, promtool: Promtool) -> None:
    for job, addresses in targets(up).items():
        done = promtool("check", "metrics", text=page(job, addresses[0]))

        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        assert set(complaints) <= {KNOWN_COMPLAINT}, job


def test_a_healthy_system_logs_little_and_nothing_above_info(up: Json) -> None:
    folder = Path(up["kubeconfig"]).parent / "logs"
    ours = ("scheduler", "webhook", "metrics", "node-agent")
    for path in sorted(path for each in ours for path in folder.glob(f"{each}*.log")):
        whole = path.read_text().rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in whole]

        assert [line for line in lines if line["level"] != "INFO"] == [], path.name
        own = [line for line in lines if "pod_uid" not in line and "pod" not in line]
        assert len(own) <= MAX_OWN_LINES, (path.name, own)
        of_pods = Counter(line.get("pod_uid") or line["pod"] for line in lines if line not in own)
        assert all(count <= MAX_POD_LINES for count in of_pods.values()), path.name
