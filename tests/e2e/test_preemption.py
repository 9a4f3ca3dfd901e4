"""Pods of a lower priority end for one that waits, and only it gets their room."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import checked_system
from tests.e2e.preempting import (
    BUDGETS,
    CLASSES,
    HIGH,
    LOW,
    PODS,
    hold_room,
    let_go,
    patiently,
    pod_of,
    preempting_system,
    release_finalizers,
    room_of,
    set_budget,
    with_cpu,
)
from tests.e2e.system import System, hamictl, wait

JUDGED = "Answered kube-scheduler's preemption"


@pytest.fixture(scope="module")
def preempting(cluster_kind: str) -> Iterator[System]:
    """A system with one node of one card."""
    with preempting_system(cluster_kind, "--nodes", "1", "--gpus", "1") as system:
        yield system


@pytest.fixture
def one(preempting: System) -> Iterator[System]:
    with checked_system(preempting) as system:
        yield system
        release_finalizers(system)


def is_blocked(system: System, name: str) -> bool:
    return any(reason == "PreemptionBlocked" for reason, _ in system.events(name))


def reasons_of(pod: Json) -> list[tuple[str, str]]:
    return [(each["type"], each.get("reason", "")) for each in pod["status"]["conditions"]]


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
    assert message.startswith("evicted to free cards for default/high (priority 1000), plan ")
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
    assert "are reserved until" in hamictl(one.folder, "pending")
    explained = partial(hamictl, one.folder, "explain", "high")
    waits_for = "are reserved until these pods are gone: default/low"
    wait(lambda: waits_for in explained(), "what it waits for")
    why = explained()
    for noise in ("RoomHeld", "view version", "were not recorded", "hamictl preempt"):
        assert noise not in why
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
    ("holder", "waiting", "why", "hint"),
    [
        (
            "batch",
            "polite",
            "the pod's preemptionPolicy is Never",
            "its preemptionPolicy is Never: no pod is preempted for it",
        ),
        *(
            (
                same,
                same,
                "no pod that holds cards may be preempted for it",
                "no pod is preempted for it: those that hold the cards have priority "
                f"{CLASSES[same]} or",
            )
            for same in ("urgent", "batch")
        ),
    ],
)
def test_nothing_ends_for_a_pod_that_may_not_preempt(
    one: System, holder: str, waiting: str, why: str, hint: str
) -> None:
    one.run(pod_of(holder, "low", 50_000))
    assert one.create(pod_of(waiting, "high", 50_000)).status_code == 201
    one.wait_for_reason("high")
    assert "high" in hamictl(one.folder, "pending")
    wait(
        lambda: hint in " ".join(hamictl(one.folder, "explain", "high").split()),
        "the explanation that no pod is preempted for it",
    )
    # Pods that no card could take, and that came later, show that it was looked at.
    for name in ("later", "latest"):
        assert one.create(pod_of("urgent", name, 90_000)).status_code == 201
        wait(partial(is_blocked, one, name), f"the plan for {name}")

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


def test_the_verb_fills_an_empty_list_of_victims(one: System) -> None:
    """kube-scheduler asks so from 1.38 on, and takes no node back without victims."""
    [low] = one.run(pod_of("batch", "low", 50_000))
    high = one.create(patiently(pod_of("urgent", "high", 50_000))).json()
    small = pod_of("urgent", "small", 20_000)
    small["metadata"] |= {"namespace": "default", "uid": "small"}

    def victims_of(pod: Json) -> Json:
        body = {"Pod": pod, "NodeNameToMetaVictims": {"node-0": {"Pods": []}}}
        answer = httpx.post(f"{one.scheduler_url}/preempt", json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["NodeNameToMetaVictims"])

    victims = {"Pods": [{"UID": low["metadata"]["uid"]}], "NumPDBViolations": 0}
    assert victims_of(high) == {}  # the delay that it asks for is not over
    del high["metadata"]["annotations"]["hami.io/preemption-delay-seconds"]
    assert victims_of(high) == {"node-0": victims}
    assert victims_of(small) == {}


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
