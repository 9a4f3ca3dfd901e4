"""Pods end for others on the cards of every vendor, by the vendor's own rules.

The nodes run no agent of ours: what their device plugins write is recorded, and a pod is over as
soon as it is deleted. As many pods of a low priority as fit are there when the urgent one comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.conftest import checked_system
from tests.e2e.preempting import HIGH, PODS, patch, pod_of, preempting_system, room_of
from tests.e2e.system import System, slice_of, wait
from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import asking, node

TWO_NUMA = ({"numa": 0}, {"numa": 0}, {"numa": 1}, {"numa": 1})
BOUND = {"nvidia.com/numa-bind": "true"}
SHAPES = {
    "two cards": (node("n", {}, {}, {}), asking(slice_of(5000) | {"nvidia.com/gpu": 2})),
    "two cards of one NUMA node": (
        node("n", *TWO_NUMA),
        asking(slice_of(5000) | {"nvidia.com/gpu": 2}, annotations=BOUND),
    ),
    "a whole card": (
        node("n", {}, {}),
        asking({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}),
    ),
}


def cases() -> Iterator[object]:
    for name, (one, pod) in SHAPES.items():
        yield pytest.param([one], pod, id=name)
    for record in recorded.lines("filter-vendors.jsonl"):
        nodes, pod = record["in"]["nodes"], record["in"]["pod"]
        resource = next(iter(pod["spec"]["containers"][0]["resources"]["limits"]))
        yield pytest.param(nodes, pod, id=resource, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def many_vendors(cluster_kind: str) -> Iterator[System]:
    """A system that serves every vendor, with a node of ours that takes no pod."""
    flags = ("--nodes", "1", "--gpus", "1", "--enable-ascend", "--enable-iluvatar")
    with preempting_system(cluster_kind, *flags) as system:
        patch(system, "/api/v1/nodes/node-0", {"spec": {"unschedulable": True}})
        yield system


@contextmanager
def nodes_of(system: System, nodes: list[Json]) -> Iterator[None]:
    """The nodes, ready and without taints."""
    for each in nodes:
        found = each.get("status") or {}
        usual = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        status = {
            "capacity": usual | (found.get("capacity") or found.get("allocatable") or {}),
            "allocatable": usual | (found.get("allocatable") or {}),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        made = system.api.post("/api/v1/nodes", json={**each, "apiVersion": "v1", "status": status})
        assert made.status_code == 201, made.text
        patch(system, f"/api/v1/nodes/{each['metadata']['name']}", {"spec": {"taints": None}})
    try:
        yield
    finally:
        for pod in system.pods():
            path = f"{PODS}/{pod['metadata']['name']}"
            system.api.request("DELETE", path, json={"gracePeriodSeconds": 0})
        for each in nodes:
            system.api.delete(f"/api/v1/nodes/{each['metadata']['name']}")


def like(pod: Json, name: str, priority: str) -> Json:
    """The pod with this name and PriorityClass, over as soon as it is deleted."""
    metadata = {"name": name, "annotations": dict(pod["metadata"].get("annotations") or {})}
    containers = [{"image": "any", **each} for each in pod["spec"]["containers"]]
    spec = {"containers": containers, "priorityClassName": priority}
    return {"metadata": metadata, "spec": {**spec, "terminationGracePeriodSeconds": 0}}


def is_bound(system: System, name: str) -> bool:
    """Return whether it is bound; False once it is refused."""

    def verdict() -> str | None:
        pod = system.pod(name)
        assert pod is not None
        if pod["spec"].get("nodeName"):
            return "True"
        conditions = pod["status"].get("conditions") or []
        return next((each["status"] for each in conditions if each["type"] == "PodScheduled"), None)

    if wait(verdict, f"{name} to be bound or refused") != "True":
        return False
    # As the vendor's device plugin does; the node's lock is free then.
    patch(
        system, f"{PODS}/{name}", {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}}
    )
    wait(lambda: room_of(system, name) == "allocated", f"{name} to have its cards")
    return True


def fill(system: System, pod: Json) -> set[str]:
    """Create pods like it until one is refused; return the names of the others."""
    names = set[str]()
    for number in count():
        name = f"low-{number}"
        answer = system.create(like(pod, name, "batch"))
        assert answer.status_code == 201, answer.text
        if not is_bound(system, name):
            system.delete(name)
            return names
        names.add(name)
    raise AssertionError


@pytest.mark.parametrize(("nodes", "pod"), list(cases()))
def test_one_pod_ends_for_an_urgent_one_like_it(
    many_vendors: System, nodes: list[Json], pod: Json
) -> None:
    system = many_vendors
    with checked_system(system), nodes_of(system, nodes):
        known = "SELECT count(DISTINCT node) FROM devices"
        wait(lambda: int(system.sql(known)) > len(nodes), "the nodes' cards to be known")
        low = fill(system, pod)
        assert low

        assert system.create(like(pod, "high", "urgent")).status_code == 201

        wait(lambda: system.get(HIGH)["spec"].get("nodeName"), "the urgent pod to be bound")
        left = {each["metadata"]["name"] for each in system.pods()}
        assert len(left & low) == len(low) - 1
        outcomes = "SELECT room_outcome FROM v_preempted_pods ORDER BY planned_at DESC LIMIT 1"
        assert system.sql(outcomes) == "taken"


@pytest.mark.slow
def test_an_instance_of_a_cut_card_goes_to_the_pod_it_was_freed_for(cluster_kind: str) -> None:
    mig = {"HAMI_NODE_AGENT_OPERATING_MODE": "mig"}
    flags = ("--nodes", "1", "--gpus", "1")
    with preempting_system(cluster_kind, *flags, environment=mig) as system:
        low = {"low-0", "low-1"}
        for name in sorted(low):
            system.run(instance_pod("batch", name))
        assert system.create(instance_pod("urgent", "high")).status_code == 201

        system.wait_for_phase("high", "Running", timeout_s=120)

        left = {each["metadata"]["name"] for each in system.pods()}
        assert len(left & low) == 1
        [victim] = low - left
        outcome = f"SELECT room_outcome FROM v_preempted_pods WHERE pod_name = '{victim}'"
        assert system.sql(outcome) == "taken"
        assert place_of(system, "high") == place_of(system, victim)
        system.check_invariants()


def instance_pod(priority: str, name: str) -> Json:
    """A pod with half of a card in MIG mode that stays until it is ended."""
    pod = pod_of(priority, name, 40_000)
    pod["spec"]["containers"][0]["command"] = ["sleep", "600"]
    return pod


def place_of(system: System, name: str) -> str:
    """The place of the pod's instance on its card."""
    return system.sql(
        "SELECT x.detail->'placement' FROM allocation_devices x"
        f" JOIN allocations a ON a.id = x.allocation_id WHERE a.pod_name = '{name}'"
    )
