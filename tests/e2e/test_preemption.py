"""Pods of a lower priority end for one that waits, and only it gets what they leave."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import checked, running_system
from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

pytestmark = pytest.mark.e2e

PODS = "/api/v1/namespaces/default/pods"
LOW, HIGH = f"{PODS}/low", f"{PODS}/high"
JUDGED = "Judged kube-scheduler's preemption"
FINALIZER = "example.com/held"
CLASSES = {"batch": 10, "urgent": 1000, "critical": 5000, "polite": 1000}


@pytest.fixture(scope="module")
def preempting(cluster_kind: str) -> Iterator[System]:
    """A system with one node of one card."""
    environment = {
        "HAMI_SCHEDULER_PREEMPTION_MODE": "on",
        "HAMI_SCHEDULER_PREEMPTION_AFTER_S": "1",
        "HAMI_SCHEDULER_PREEMPTION_ROOM_S": "20",
        "HAMI_SCHEDULER_PREEMPTIONS_PER_MINUTE": "1000",
    }
    flags = ("--nodes", "1", "--gpus", "1")
    with running_system(cluster_kind, *flags, environment=environment) as system:
        for name, value in CLASSES.items():
            body: Json = {"metadata": {"name": name}, "value": value}
            if name == "polite":
                body["preemptionPolicy"] = "Never"
            answer = system.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", json=body)
            assert answer.status_code == 201, answer.text
        yield system


@pytest.fixture
def one(preempting: System) -> Iterator[System]:
    with checked(preempting) as system:
        yield system
        for pod in system.pods():
            if pod["metadata"].get("finalizers"):
                let_go(system, pod["metadata"]["name"])


def pod_of(priority: str, name: str, memory_mib: int, **spec: object) -> Json:
    pod = a_pod(name, slice_of(memory_mib))
    pod["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0, **spec}
    return pod


def held_back(name: str, memory_mib: int, priority: str = "batch") -> Json:
    """A pod whose slices stay until its finalizer is removed."""
    pod = pod_of(priority, name, memory_mib)
    pod["metadata"]["finalizers"] = [FINALIZER]
    return pod


def reasons_of(pod: Json) -> list[tuple[str, str]]:
    return [(each["type"], each.get("reason", "")) for each in pod["status"]["conditions"]]


def let_go(system: System, name: str) -> None:
    answer = system.api.patch(
        f"/api/v1/namespaces/default/pods/{name}",
        json={"metadata": {"finalizers": []}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
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


def test_a_pod_of_a_lower_priority_ends_for_one_that_waits(one: System) -> None:
    one.run(pod_of("batch", "low", 50_000), pod_of("batch", "stays", 20_000))

    assert one.create(pod_of("urgent", "high", 50_000)).status_code == 201

    one.wait_for_phase("high", "Running", timeout_s=60)
    assert {pod["metadata"]["name"] for pod in one.pods()} == {"high", "stays"}
    record = one.sql(
        "SELECT concat_ws(' ', pod_name, priority, for_pod_name, for_priority, room_outcome,"
        " problem || '-', evicted_at IS NOT NULL, gone_at IS NOT NULL) FROM v_preempted_pods"
    )
    assert record == "low 10 high 1000 taken - t t"
    [message] = [text for reason, text in one.events("low") if reason == "Preempted"]
    assert message.startswith("ended to make room for default/high (priority 1000), plan ")
    assert message in hamictl(one.folder, "history", "low")


def test_only_the_pod_that_it_was_freed_for_gets_the_room(one: System) -> None:
    hold_room(one, "high")
    assert one.get(HIGH)["status"]["nominatedNodeName"] == room_node(one)
    wait(
        lambda: ("DisruptionTarget", "PreemptionByScheduler") in reasons_of(one.get(LOW)),
        "the condition by which kube-scheduler knows a victim",
    )
    rivals = [f"rival-{number}" for number in range(20)]
    for name in rivals:
        assert one.create(pod_of("urgent", name, 50_000)).status_code == 201
    for name in rivals:
        one.wait_for_reason(name)
    assert "room on node" in hamictl(one.folder, "pending")
    one.check_invariants()

    let_go(one, "low")

    one.wait_for_phase("high", "Running", timeout_s=30)
    assert {one.pod(name)["status"]["phase"] for name in rivals} == {"Pending"}  # type: ignore[index]


def test_a_pod_of_a_higher_priority_takes_the_room_over(one: System) -> None:
    hold_room(one, "high")
    assert one.create(pod_of("critical", "highest", 50_000)).status_code == 201
    wait(lambda: room_of(one, "highest") == "reserved", "the room to go to the critical pod")
    assert room_of(one, "high") == "released"

    let_go(one, "low")

    one.wait_for_phase("highest", "Running", timeout_s=30)
    assert one.pod("high")["status"]["phase"] == "Pending"  # type: ignore[index]


def test_a_room_outlives_its_scheduler(one: System) -> None:
    hold_room(one, "high")
    pid = one.pid_of("scheduler")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: one.pid_of("scheduler") not in (None, pid), "another scheduler")
    assert one.create(pod_of("urgent", "rival", 50_000)).status_code == 201

    let_go(one, "low")

    one.wait_for_phase("high", "Running", timeout_s=30)
    assert one.pod("rival")["status"]["phase"] == "Pending"  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
def test_a_scheduler_that_dies_at_any_moment_loses_no_room(one: System, after_s: float) -> None:
    one.run(pod_of("batch", "low", 50_000), pod_of("batch", "stays", 20_000))
    assert one.create(pod_of("urgent", "high", 50_000)).status_code == 201
    killed = one.pid_of("scheduler")
    assert killed is not None

    # The moment is the case; nothing is waited for.
    threading.Timer(after_s, os.kill, (killed, signal.SIGKILL)).start()

    one.wait_for_phase("high", "Running", timeout_s=120)
    wait(lambda: one.pid_of("scheduler") not in (None, killed), "another scheduler")
    assert {pod["metadata"]["name"] for pod in one.pods()} == {"high", "stays"}


def test_a_room_ends_with_the_pod_that_it_was_made_for(one: System) -> None:
    hold_room(one, "high")
    assert one.create(pod_of("urgent", "next", 50_000)).status_code == 201
    one.delete("high")
    wait(lambda: room_of(one, "high") == "released", "the room to end")

    let_go(one, "low")

    one.wait_for_phase("next", "Running", timeout_s=60)


@pytest.mark.slow
def test_a_room_ends_when_its_victim_stays(one: System) -> None:
    hold_room(one, "high")

    wait(lambda: room_of(one, "high") == "expired", "the room to expire")
    outcome = one.sql(
        "SELECT room_outcome || ' ' || room_reason FROM v_preempted_pods"
        " ORDER BY planned_at DESC LIMIT 1"
    )
    assert outcome == "expired not bound in time"
    let_go(one, "low")
    one.wait_for_phase("high", "Running", timeout_s=60)


@pytest.mark.parametrize(
    ("holder", "waiting", "why"),
    [
        ("batch", "polite", "the pod's preemptionPolicy is Never"),
        ("urgent", "urgent", "no pod that holds cards may end for it"),
        ("batch", "batch", "no pod that holds cards may end for it"),
    ],
)
def test_nothing_ends_for_a_pod_that_may_not_preempt(
    one: System, holder: str, waiting: str, why: str
) -> None:
    one.run(pod_of(holder, "low", 50_000))
    assert one.create(pod_of(waiting, "high", 50_000)).status_code == 201
    one.wait_for_reason("high")
    assert "high" in hamictl(one.folder, "pending")
    # A pod that came later and may preempt shows that the others were looked at.
    assert one.create(pod_of("critical", "small", 30_000)).status_code == 201
    one.wait_for_phase("small", "Running")

    body = {"namespace": "default", "name": "high"}
    answer = httpx.post(f"{one.scheduler_url}/v1/preempt", json=body, timeout=30).json()

    assert answer["summary"] == f"no plan: {why}"
    assert one.pod("low")["status"]["phase"] == "Running"  # type: ignore[index]
    uid = one.get(HIGH)["metadata"]["uid"]
    assert one.sql(f"SELECT count(*) FROM v_preempted_pods WHERE for_pod_uid = '{uid}'") == "0"


@pytest.mark.slow
def test_a_hundred_urgent_pods_end_one_each(one: System) -> None:
    spent_s = []
    for number in range(100):
        one.run(pod_of("batch", f"low-{number}", 50_000), pod_of("batch", f"stays-{number}", 9_000))
        assert one.create(pod_of("urgent", f"high-{number}", 50_000)).status_code == 201
        one.wait_for_phase(f"high-{number}", "Running", timeout_s=60)
        assert one.pod(f"stays-{number}") is not None
        spent = one.sql(
            "SELECT extract(epoch FROM r.bound_at - v.ended_at) FROM preempted p"
            " JOIN allocations r ON r.id = p.room_id JOIN allocations v ON v.id = p.victim_id"
            f" WHERE r.pod_name = 'high-{number}' AND r.bound_at IS NOT NULL"
        )
        spent_s.append(float(spent))
        one.delete(f"high-{number}", f"stays-{number}")
    spent_s.sort()
    measured.note(f"from room to bound: median {spent_s[50]:.2f} s, at most {spent_s[-1]:.2f} s")
    assert (
        one.sql(
            "SELECT count(*) FROM v_preempted_pods WHERE room_outcome <> 'taken'"
            " AND pod_name LIKE 'low-%'"
        )
        == "0"
    )


def room_node(system: System) -> str:
    return system.sql("SELECT node FROM allocations WHERE state = 'reserved'")


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


def test_a_disruption_budget_is_a_bar(one: System, cluster_kind: str) -> None:
    if cluster_kind != "real":
        pytest.skip("the emulated API server has no PodDisruptionBudgets")
    low = pod_of("batch", "low", 50_000)
    low["metadata"]["labels"] = {"app": "low"}
    selector = {"selector": {"matchLabels": {"app": "low"}}, "minAvailable": 2}
    body = {"metadata": {"name": "low"}, "spec": selector}
    assert one.api.post(BUDGETS, json=body).status_code == 201
    try:
        set_budget(one, "low", 0)
        one.run(low)
        assert one.create(pod_of("urgent", "high", 50_000)).status_code == 201
        wait(
            lambda: any(
                "PodDisruptionBudget" in text or "no pod that holds cards" in text
                for reason, text in one.events("high")
                if reason == "PreemptionBlocked"
            ),
            "the reason why nothing ends",
        )
        assert "deletionTimestamp" not in one.get(LOW)["metadata"]
        set_budget(one, "low", 1)
        one.wait_for_phase("high", "Running", timeout_s=90)
        assert one.pod("low") is None
    finally:
        one.api.delete(f"{BUDGETS}/low")


def test_kube_schedulers_own_preemption_ends_no_pod_where_cards_are_short(
    one: System, cluster_kind: str
) -> None:
    """The host lacks CPU and the cards lack memory: it evicts only where both are enough then."""
    if cluster_kind != "real":
        pytest.skip("the emulated kube-scheduler preempts no pods")
    [node] = one.get("/api/v1/nodes")["items"]
    cpu = int(node["status"]["allocatable"]["cpu"])
    one.run(
        pod_of("batch", "small", 1_000),
        with_cpu(pod_of("batch", "host", 1_000), 1000 * cpu - 700),
        pod_of("urgent", "equal", 60_000),
    )
    waiting = with_cpu(pod_of("urgent", "high", 50_000), 900)
    uid = one.create(waiting).json()["metadata"]["uid"]
    log = one.folder / "logs" / "scheduler.log"
    wait(
        lambda: any(uid in line and JUDGED in line for line in log.read_text().splitlines()),
        "kube-scheduler to ask about its victims",
    )
    one.wait_for_reason("high")
    assert "deletionTimestamp" not in one.get(f"{PODS}/host")["metadata"]

    # For this one the end of `host`, which kube-scheduler chooses for its CPU, and of one more do.
    assert one.create(with_cpu(pod_of("critical", "higher", 21_500), 900)).status_code == 201
    one.wait_for_phase("higher", "Running", timeout_s=60)
    assert {pod["metadata"]["name"] for pod in one.pods()} == {"equal", "high", "higher"}


def with_cpu(pod: Json, milli: int) -> Json:
    for container in pod["spec"]["containers"]:
        container["resources"]["limits"] |= {"cpu": f"{milli}m"}
    return pod
