"""The admission check `hami.io/fits-as-slices` on the real Kueue.

Three of the four cards are full here; the queue's quota exceeds the cards, so only the check keeps
a Job from starting.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import System, a_pod, hamictl, slice_of, wait
from tests.e2e_kueue.conftest import (
    CHECKED,
    JOBS,
    KUEUE,
    WORKLOADS,
    bound_pods,
    condition_of,
    create_job,
    delete_jobs,
    job_of,
    pods_of,
    wait_for_condition,
    workload_of,
)

CARD_MIB = 81920
HALF = slice_of(50_000)
"""No two of them fit on one card."""
STARTED_S = 2.0


@pytest.fixture
def one_card(queued: System) -> Iterator[System]:
    """The system with one free card; its pods without a queue hold the others."""
    fill(queued, 3)
    yield queued
    delete_jobs(queued)


def fill(system: System, cards: int) -> None:
    system.run(*(a_pod(f"full-{number}", slice_of(CARD_MIB)) for number in range(cards)))


def check_of(system: System, job: str) -> Json:
    """Return our entry in the status of the Job's Workload; empty: Kueue has not asked."""
    workload = workload_of(system, job)
    [state] = ((workload or {}).get("status") or {}).get("admissionChecks") or [{}]
    return dict(state)


def wait_for_state(system: System, job: str, state: str, message: str = "") -> Json:
    def matching_check() -> Json | None:
        found = check_of(system, job)
        return found if found.get("state") == state and message in found["message"] else None

    return wait(
        matching_check,
        f"the check of {job} to be {state}",
        timeout_s=90,
        why=lambda: str(check_of(system, job)),
    )


def delete_job(system: System, job: str) -> None:
    system.api.request("DELETE", f"{JOBS}/{job}", json={"propagationPolicy": "Background"})


def test_without_the_check_pods_wait_with_quota_in_hand(one_card: System) -> None:
    create_job(one_card, job_of("plain", HALF, pods=2))

    wait_for_condition(one_card, "plain", "Admitted")
    wait(lambda: len(bound_pods(pods_of(one_card, "plain"))) == 1, "the pod that fits to be bound")
    [waiting] = [pod for pod in pods_of(one_card, "plain") if not pod["spec"].get("nodeName")]
    assert "nodes are available" in one_card.wait_for_reason(waiting["metadata"]["name"])


def test_with_the_check_a_job_starts_when_its_slices_are_there_and_not_before(
    one_card: System,
) -> None:
    create_job(one_card, job_of("checked", HALF, pods=2, queue=CHECKED))

    state = wait_for_state(one_card, "checked", "Pending", "1 of the 2 pods")
    assert "wants 1 NVIDIA card with 50000 MiB" in state["message"]
    assert condition_of(workload_of(one_card, "checked"), "QuotaReserved")["status"] == "True"
    assert pods_of(one_card, "checked") == []
    shown = hamictl(one_card.folder, "explain", "workload/checked")
    assert "holds its quota of queue checked since" in shown
    assert "fits-as-slices (whether its slices are there): Pending: 1 of the 2 pods" in shown
    listed = json.loads(hamictl(one_card.folder, "pending", "-o", "json"))["items"]
    [row] = [each for each in listed if each["reason_code"] == "AtKueue"]
    assert row["pod_name"].startswith("workload/job-checked-")
    assert row["summary"].startswith("at Kueue, quota held since ")

    freed = time.monotonic()
    one_card.delete("full-0")
    wait(lambda: len(bound_pods(pods_of(one_card, "checked"))) == 2, "both pods to be bound")
    took_s = time.monotonic() - freed

    measured.note(f"room there -> both pods of the Job bound: {took_s:.2f} s")
    assert check_of(one_card, "checked")["state"] == "Ready"
    assert "2 of 2 pods fit: node-" in check_of(one_card, "checked")["message"]
    verdicts = (
        "SELECT string_agg(outcome || ': ' || summary, ' / ' ORDER BY at) FROM decisions "
        "WHERE group_key LIKE 'workload/default/job-checked-%'"
    )
    wait(
        lambda: re.search(
            r"refused: Pending: 1 of the 2 .* / placed: Ready: 2 of 2", one_card.sql(verdicts)
        ),
        "both verdicts to be recorded",
    )
    assert "is admitted by queue checked" in hamictl(one_card.folder, "explain", "workload/checked")


def history_of(system: System, names: list[str]) -> list[str]:
    """Return the scheduler's lines about these Jobs."""
    lines = (system.folder / "logs" / "scheduler.log").read_text().splitlines()
    return [line for line in lines if any(name in line for name in names)]


def race(system: System, number: int) -> float:
    """Create two Jobs for the last card concurrently; return the time of the second one's start."""
    names = [f"race-{number}-{letter}" for letter in "ab"]
    together = threading.Barrier(2)

    def create(name: str) -> None:
        together.wait()
        create_job(system, job_of(name, HALF, queue=CHECKED))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(create, names))

    def ready_names() -> list[str] | None:
        states = {name: check_of(system, name) for name in names}
        ready = [name for name in names if states[name].get("state") == "Ready"]
        assert len(ready) <= 1, (states, history_of(system, names))
        answered = [name for name in names if states[name].get("message")]
        return ready if ready and len(answered) == 2 else None

    [first] = wait(
        ready_names, "both to be answered", why=lambda: str([check_of(system, n) for n in names])
    )
    [second] = [name for name in names if name != first]
    wait(lambda: bound_pods(pods_of(system, first)), "the first Job's pod to be bound")
    assert check_of(system, second)["state"] == "Pending"
    system.check_invariants()
    delete_job(system, first)
    wait(lambda: pods_of(system, first) == [], "the first Job's pod to be gone")
    freed = time.monotonic()
    wait(lambda: bound_pods(pods_of(system, second)), "the second Job's pod to be bound")
    took_s = time.monotonic() - freed
    delete_job(system, second)
    wait(lambda: pods_of(system, second) == [], "the second Job's pod to be gone")
    return took_s


@pytest.mark.parametrize("runs", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_two_jobs_for_the_last_card_are_ready_one_at_a_time(one_card: System, runs: int) -> None:
    times = [race(one_card, number) for number in range(runs)]

    measured.note(
        f"{runs} races for the last card: one Ready at a time; card free -> second Job's pod "
        f"bound: median {statistics.median(times):.2f} s, max {max(times):.2f} s"
    )


def test_a_card_that_nobody_has_is_rejected_with_the_amount(queued: System) -> None:
    create_job(queued, job_of("huge", slice_of(CARD_MIB + 1), queue=CHECKED))

    state = wait_for_state(queued, "huge", "Rejected")

    assert "81921 MiB" in state["message"]
    assert "81920 MiB" in state["message"]
    wait(
        lambda: (workload_of(queued, "huge") or {"spec": {}})["spec"].get("active") is False,
        "the Workload to be deactivated",
    )
    assert pods_of(queued, "huge") == []


def test_pods_that_admission_refuses_are_rejected_with_its_sentence(queued: System) -> None:
    job = job_of("odd", slice_of(1000), queue=CHECKED)
    [container] = job["spec"]["template"]["spec"]["containers"]
    container["securityContext"] = {"privileged": True}
    create_job(queued, job)

    assert "privileged" in wait_for_state(queued, "odd", "Rejected")["message"]


def test_a_killed_scheduler_loses_bookings_and_nothing_else(one_card: System) -> None:
    one_card.delete("full-0", "full-1")
    for round_, pods in enumerate((1, 3)):
        name = f"killed-{round_}"
        create_job(one_card, job_of(name, HALF, pods=pods, queue=CHECKED))
        wait_for_state(one_card, name, "Ready")
        pid = wait(lambda: one_card.pid_of("scheduler"), "the scheduler to be ready")
        os.kill(pid, signal.SIGKILL)

        wait(
            lambda name=name, pods=pods: len(bound_pods(pods_of(one_card, name))) == pods,
            "every pod of the Job to be bound",
        )
        one_card.check_invariants()
        delete_jobs_of(one_card, name)


def delete_jobs_of(system: System, name: str) -> None:
    delete_job(system, name)
    wait(lambda: pods_of(system, name) == [], f"the pods of {name} to be gone")


def test_a_group_behind_the_check_takes_what_is_kept_for_it(one_card: System) -> None:
    one_card.delete("full-0")
    job = job_of("group", HALF, pods=2, queue=CHECKED)
    job["spec"]["template"]["metadata"] = {
        "labels": {"scheduling.x-k8s.io/pod-group": "group"},
        "annotations": {"hami.io/group-min": "2"},
    }
    before = read_counter(one_card, "hami_scheduler_kueue_bookings")
    create_job(one_card, job)
    wait_for_state(one_card, "group", "Ready")
    began = time.monotonic()

    wait(lambda: len(bound_pods(pods_of(one_card, "group"))) == 2, "both pods to be bound")

    # Otherwise it would wait for the deadline of its own bookings.
    measured.note(f"Ready -> a group of 2 bound: {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < 25
    assert read_counter(one_card, "hami_scheduler_kueue_bookings") - before == 2


def test_the_pods_of_a_job_without_a_queue_start_together_by_their_label(one_card: System) -> None:
    job = job_of("together", HALF, pods=2, queue="")
    job["spec"]["template"]["metadata"] = {
        "labels": {"scheduling.x-k8s.io/pod-group": "together"},
        "annotations": {"hami.io/group-min": "2"},
    }
    create_job(one_card, job)
    wait(lambda: len(pods_of(one_card, "together")) == 2, "the Job's pods to exist")
    for pod in pods_of(one_card, "together"):
        assert "GroupWaiting" in one_card.wait_for_reason(pod["metadata"]["name"])
    assert bound_pods(pods_of(one_card, "together")) == []

    one_card.delete("full-0")
    wait(lambda: len(bound_pods(pods_of(one_card, "together"))) == 2, "both pods to be bound")


@pytest.mark.slow
def test_nothing_is_admitted_while_the_scheduler_is_away(one_card: System) -> None:
    one_card.delete("full-0", "full-1", "full-2")
    names = [f"away-{number}" for number in range(4)]
    ended = threading.Event()

    def keep_down() -> None:
        while not ended.wait(0.02):
            state = json.loads((one_card.folder / "state.json").read_text())
            if pid := state["services"].get("scheduler", {}).get("pid"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # also while it starts

    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(keep_down)
        wait(lambda: one_card.pid_of("scheduler") is None, "the scheduler to be down")
        for name in names:
            create_job(one_card, job_of(name, HALF, queue=CHECKED))
        time.sleep(60)
        assert [check_of(one_card, name)["state"] for name in names] == ["Pending"] * 4
        assert [pods_of(one_card, name) for name in names] == [[]] * 4
        ended.set()
        holding.result()

    wait(lambda: one_card.pid_of("scheduler"), "the scheduler to be back")
    back = time.monotonic()
    for name in names:
        wait_for_state(one_card, name, "Ready")
    took_s = time.monotonic() - back
    measured.note(f"scheduler back -> all 4 pending checks answered: {took_s:.2f} s")


@pytest.mark.slow
def test_a_workload_that_gives_way_keeps_its_quota_until_it_is_requeued(queued: System) -> None:
    """Kueue 0.19.2 differs from its documentation, where Retry frees the quota immediately."""
    fill(queued, 4)
    create_job(queued, job_of("retry", HALF, queue=CHECKED))
    wait_for_state(queued, "retry", "Pending", "0 of the 1 pod")
    workload = workload_of(queued, "retry")
    assert workload is not None
    [state] = workload["status"]["admissionChecks"]
    path = f"{KUEUE}/namespaces/default/workloads/{workload['metadata']['name']}/status"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    retry = {"state": "Retry", "requeueAfterSeconds": 8, "lastTransitionTime": now}
    body = {"status": {"admissionChecks": [{**state, **retry}]}}
    answer = queued.api.patch(
        path, json=body, headers={"content-type": "application/merge-patch+json"}
    )
    assert answer.status_code == 200, answer.text
    asked = time.monotonic()

    seen: list[tuple[float, str, str, str]] = []
    while time.monotonic() - asked < 14:
        found = workload_of(queued, "retry")
        assert found is not None
        quota, evicted = condition_of(found, "QuotaReserved"), condition_of(found, "Evicted")
        [check] = found["status"].get("admissionChecks") or [{}]
        entry = (quota.get("status", "-"), evicted.get("status", "-"), check.get("state", "-"))
        if not seen or seen[-1][1:] != entry:
            seen.append((round(time.monotonic() - asked, 2), *entry))
        time.sleep(0.02)

    measured.note(f"Retry for 8 s: (s, QuotaReserved, Evicted, check) {seen}")
    lost = [at for at, quota, *_ in seen if quota != "True"]
    # The moment has whole seconds.
    assert min(lost) > 6, seen


def read_counter(system: System, name: str) -> float:
    """Sum a counter of the scheduler over its labels."""
    text = httpx.get(f"{system.scheduler_url}/metrics", timeout=10).text
    lines = [line for line in text.splitlines() if line.startswith(f"{name}_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def cpu_s(system: System) -> float:
    """Return the processor time that the scheduler has used."""
    pid = wait(lambda: system.pid_of("scheduler"), "the scheduler to be ready")
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_five_hundred_workloads_at_once_are_all_answered(queued: System) -> None:
    fill(queued, 4)
    number = 500
    answers, used_s = read_counter(queued, "hami_scheduler_kueue_checks"), cpu_s(queued)
    with ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                lambda n: create_job(queued, job_of(f"many-{n}", HALF, queue=CHECKED)),
                range(number),
            )
        )
    created = time.monotonic()

    def all_answered() -> bool:
        states = [
            state
            for workload in queued.get(WORKLOADS)["items"]
            for state in (workload.get("status") or {}).get("admissionChecks") or ()
        ]
        return len([each for each in states if "0 of the 1 pod" in each["message"]]) == number

    wait(all_answered, "every check to be answered", timeout_s=200)

    took_s = time.monotonic() - created
    patches = read_counter(queued, "hami_scheduler_kueue_checks") - answers
    measured.note(
        f"{number} workloads at once: last verdict {took_s:.1f} s after the last was created, "
        f"{patches / number:.2f} patches each, {cpu_s(queued) - used_s:.1f} s of the scheduler's "
        "processor time"
    )
    assert patches < 2 * number


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["", "gpu", CHECKED])
def test_how_long_a_job_takes_from_its_creation_to_its_pods_nodes(
    queued: System, queue: str
) -> None:
    times = []
    for number in range(10):
        name = f"timed-{number}"
        began = time.monotonic()
        create_job(queued, job_of(name, slice_of(4000), pods=4, queue=queue))
        deadline = began + 60
        while len(bound_pods(pods_of(queued, name))) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        times.append(time.monotonic() - began)
        delete_jobs_of(queued, name)

    kind = {"": "no queue", "gpu": "Kueue", CHECKED: "Kueue and the check"}[queue]
    measured.note(
        f"Job of 4 pods created -> all bound, {kind}: median {statistics.median(times):.2f} s, "
        f"{min(times):.2f} to {max(times):.2f} s"
    )


def test_the_check_is_active_and_verdicts_have_a_time(queued: System) -> None:
    check = queued.get(f"{KUEUE}/admissionchecks/fits-as-slices")
    assert condition_of(check, "Active")["status"] == "True"
    create_job(queued, job_of("dated", slice_of(1000), queue=CHECKED))
    state = wait_for_state(queued, "dated", "Ready")
    assert datetime.fromisoformat(state["lastTransitionTime"])
