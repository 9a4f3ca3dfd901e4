"""A plan of preemption names the pods whose end lets an urgent pod run, and ends none itself."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, hamictl, slice_of

pytestmark = pytest.mark.e2e
CARDS = 12
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def classes(system: System) -> None:
    """Two PriorityClasses, as a platform has them."""
    for name, value in (("batch", 10), ("urgent", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        answer = system.api.post(CLASSES, json=body)
        assert answer.status_code in (201, 409), answer.text


def urgent_pod(name: str, limits: Json) -> Json:
    pod = a_pod(name, limits)
    pod["spec"]["priorityClassName"] = "urgent"
    return pod


def test_a_plan_names_the_pod_whose_end_lets_an_urgent_pod_run(
    system: System, classes: None, tmp_path: Path
) -> None:
    holders = []
    for number in range(CARDS):
        holder = a_pod(f"batch-{number}", slice_of(70_000))
        holder["spec"]["priorityClassName"] = "batch"
        holders.append(holder)
    system.run(*holders)
    urgent = urgent_pod("urgent", slice_of(40_000))
    manifest = tmp_path / "urgent.yaml"
    manifest.write_text(yaml.safe_dump(urgent))

    planned = json.loads(hamictl(system.folder, "preempt", "-f", str(manifest), "-o", "json"))

    assert planned["priority"] == 1000
    assert [len(plan["victims"]) for plan in planned["plans"]] == [1, 1]
    assert len({plan["node"] for plan in planned["plans"]}) == 2
    [victim] = planned["plans"][0]["victims"]
    assert victim["priority"] == 10
    assert system.create(urgent).status_code == 201
    system.wait_for_reason("urgent")
    screen = hamictl(system.folder, "preempt", "urgent")
    assert "default/urgent (priority 1000) would go to node-" in screen
    assert ", if 1 pod ended" in screen
    # Nothing has ended for a plan, and the plan is true.
    assert len([pod for pod in system.pods() if pod["status"]["phase"] == "Running"]) == CARDS
    system.delete(victim["pod"].removeprefix("default/"))
    system.wait_for_phase("urgent", "Running", timeout_s=60)
    [card] = planned["plans"][0]["cards"]
    held = system.sql(
        "SELECT d.device_uuid FROM allocations a JOIN allocation_devices d"
        " ON d.allocation_id = a.id WHERE a.pod_name = 'urgent' AND a.ended_at IS NULL"
    )
    assert held.strip() == card["uuid"]


def test_a_pod_of_no_higher_priority_has_no_plan(system: System, classes: None) -> None:
    holder = a_pod("equal", slice_of(80_000))
    holder["spec"]["priorityClassName"] = "urgent"
    system.run(holder)
    body = {"pod": urgent_pod("late", slice_of(100_000))}
    answer = httpx.post(f"{system.scheduler_url}/v1/preempt", json=body, timeout=30).json()

    assert answer["plans"] == []
    assert "no plan" in answer["summary"]
    assert "pods of its priority or a higher one: 1 not considered" in answer["notes"]
