"""A plan of preemption names the pods whose end lets an urgent pod run, and ends none itself."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

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

    found = json.loads(hamictl(system.folder, "preempt", "-f", str(manifest), "-o", "json"))

    assert found["priority"] == 1000
    assert [len(plan["victims"]) for plan in found["plans"]] == [1, 1]
    assert len({plan["node"] for plan in found["plans"]}) == 2
    [victim] = found["plans"][0]["victims"]
    assert victim["priority"] == 10
    assert system.create(urgent).status_code == 201
    system.wait_for_reason("urgent")
    hint = "its priority is 1000: `hamictl preempt default/urgent` shows which pods"
    assert hint in hamictl(system.folder, "explain", "urgent")
    screen = hamictl(system.folder, "preempt", "urgent")
    assert "default/urgent (priority 1000) would go to node-" in screen
    assert ", if 1 pod were preempted" in screen
    # Nothing has ended for a plan, and the plan is true.
    assert len([pod for pod in system.pods() if pod["status"]["phase"] == "Running"]) == CARDS
    system.delete(victim["pod"].removeprefix("default/"))
    system.wait_for_phase("urgent", "Running", timeout_s=60)
    [card] = found["plans"][0]["cards"]
    held = system.sql(
        "SELECT d.device_uuid FROM allocations a JOIN allocation_devices d"
        " ON d.allocation_id = a.id WHERE a.pod_name = 'urgent' AND a.ended_at IS NULL"
    )
    assert held.strip() == card["uuid"]


def test_a_plan_goes_round_cordoned_nodes_and_a_pod_that_never_preempts_has_none(
    system: System, classes: None
) -> None:
    holder = a_pod("batch-0", slice_of(80_000))
    holder["spec"]["priorityClassName"] = "batch"
    nodes = [node["metadata"]["name"] for node in system.get("/api/v1/nodes")["items"]]
    system.run(*(dict(holder, metadata={"name": f"batch-{n}"}) for n in range(CARDS)))
    closed = nodes[:-1]
    try:
        for node in closed:
            set_unschedulable(system, node, closed=True)
        wait(
            lambda: (
                request_plans(system, urgent_pod("late", slice_of(40_000)))["plans"][0]["node"]
                == nodes[-1]
            ),
            "the plan to leave out the cordoned nodes",
        )
        answer = request_plans(system, urgent_pod("late", slice_of(40_000)))
        assert len(answer["plans"]) == 1
        assert "nodes that are cordoned: 2 not considered" in answer["notes"]
        assert_cordons_are_shown(system, closed)
    finally:
        for node in closed:
            set_unschedulable(system, node, closed=False)
    polite = urgent_pod("polite", slice_of(40_000))
    polite["spec"]["preemptionPolicy"] = "Never"

    refused = request_plans(system, polite)

    assert refused["plans"] == []
    assert refused["summary"] == "no plan: the pod's preemptionPolicy is Never"


def assert_cordons_are_shown(system: System, closed: list[str]) -> None:
    shown = hamictl(system.folder, "get", "nodes")
    assert shown.count("Ready,SchedulingDisabled") == len(closed)
    fits = json.loads(hamictl(system.folder, "capacity", "--gpumem", "1Gi", "-o", "json"))
    assert set(fits["nodes"]).isdisjoint(closed)
    assert fits["closed"] == {"are cordoned": len(closed)}
    assert system.create(a_pod("late", slice_of(40_000))).status_code == 201
    system.wait_for_reason("late")

    def reasons() -> bool:
        screen = hamictl(system.folder, "explain", "late")
        return screen.count("is cordoned (SchedulingDisabled)") == len(closed)

    wait(reasons, "the explanation to name the cordoned nodes")


def request_plans(system: System, pod: Json) -> Json:
    answer = httpx.post(f"{system.scheduler_url}/v1/preempt", json={"pod": pod}, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def set_unschedulable(system: System, node: str, *, closed: bool) -> None:
    answer = system.api.patch(
        f"/api/v1/nodes/{node}",
        json={"spec": {"unschedulable": closed}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status_code == 200, answer.text


def test_a_pod_of_no_higher_priority_has_no_plan(system: System, classes: None) -> None:
    holder = a_pod("equal", slice_of(80_000))
    holder["spec"]["priorityClassName"] = "urgent"
    system.run(holder)
    answer = request_plans(system, urgent_pod("late", slice_of(100_000)))

    assert answer["plans"] == []
    assert "no plan" in answer["summary"]
    assert "pods of its priority or a higher one: 1 not considered" in answer["notes"]
