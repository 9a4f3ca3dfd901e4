"""A system on which pods end for others, and the pods of its cases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hamicommon.k8s.types import Json

from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait

PODS = "/api/v1/namespaces/default/pods"
LOW, HIGH = f"{PODS}/low", f"{PODS}/high"
FINALIZER = "example.com/held"
CLASSES = {"batch": 10, "urgent": 1000, "critical": 5000, "polite": 1000}


@contextmanager
def preempting_system(
    kind: str,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    extender_verbs: Mapping[str, str] | None = None,
) -> Iterator[System]:
    """A system with PriorityClasses; `extender_verbs` are changes of kube-scheduler's extender."""
    settings = {
        "HAMI_SCHEDULER_PREEMPTION_MODE": "on",
        "HAMI_SCHEDULER_PREEMPTION_AFTER_S": "1",
        "HAMI_SCHEDULER_PREEMPTION_ROOM_S": "60",
        "HAMI_SCHEDULER_PREEMPTIONS_PER_MINUTE": "1000",
        **(environment or {}),
    }
    with running_system(
        kind, *flags, environment=settings, extender_verbs=extender_verbs or {}
    ) as system:
        for name, value in CLASSES.items():
            body: Json = {"metadata": {"name": name}, "value": value}
            if name == "polite":
                body["preemptionPolicy"] = "Never"
            answer = system.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", json=body)
            assert answer.status_code == 201, answer.text
        yield system


def pod_of(priority: str, name: str, memory_mib: int, **spec: object) -> Json:
    """A pod of this PriorityClass, without a grace period."""
    pod = a_pod(name, slice_of(memory_mib))
    pod["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0, **spec}
    return pod


def with_cpu(pod: Json, milli: int) -> Json:
    """The pod with this much CPU for each container."""
    for container in pod["spec"]["containers"]:
        container["resources"]["limits"] |= {"cpu": f"{milli}m"}
    return pod


def patiently(pod: Json) -> Json:
    """The pod, for which no other pod ends within an hour."""
    pod["metadata"].setdefault("annotations", {})["hami.io/preemption-delay-seconds"] = "3600"
    return pod


def held_back(name: str, memory_mib: int, priority: str = "batch") -> Json:
    """A pod whose slices stay until its finalizer is removed."""
    pod = pod_of(priority, name, memory_mib)
    pod["metadata"]["finalizers"] = [FINALIZER]
    return pod


def let_go(system: System, name: str) -> None:
    """Remove the pod's finalizers."""
    patch(system, f"{PODS}/{name}", {"metadata": {"finalizers": []}})


def patch(system: System, path: str, body: Json) -> None:
    """Change an object."""
    headers = {"Content-Type": "application/merge-patch+json"}
    answer = system.api.patch(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text


def room_of(system: System, name: str) -> str:
    """The state of the pod's last grant."""
    return system.sql(
        f"SELECT state FROM allocations WHERE pod_name = '{name}' ORDER BY reserved_at DESC LIMIT 1"
    )


def hold_room(system: System, name: str) -> None:
    """Have a room held for this pod, whose victim `low` goes only when it is let go."""
    system.run(held_back("low", 50_000))
    assert system.create(pod_of("urgent", name, 50_000)).status_code == 201
    wait(lambda: room_of(system, name) == "reserved", "the room to be held")
    wait(lambda: "deletionTimestamp" in system.get(LOW)["metadata"], "the victim to be evicted")


def release_finalizers(system: System) -> None:
    """Let every pod go."""
    for pod in system.pods():
        if pod["metadata"].get("finalizers"):
            let_go(system, pod["metadata"]["name"])


BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def set_budget(system: System, name: str, allowed: int) -> None:
    """Write what the disruption controller would: evictions that are allowed now."""
    found = system.get(f"{BUDGETS}/{name}")
    counts = {"expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 2 - allowed}
    found["status"] = {
        **counts,
        "disruptionsAllowed": allowed,
        "observedGeneration": found["metadata"]["generation"],
    }
    answer = system.api.put(f"{BUDGETS}/{name}/status", json=found)
    assert answer.status_code == 200, answer.text
