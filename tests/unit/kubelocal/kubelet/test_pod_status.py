"""Phase, conditions and container statuses."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubelocal.kubelet import pod_status
from kubelocal.kubelet.pod_status import ContainerState, Running, State, Terminated, WaitingState

from tests.unit.kubelocal.kubelet.pod_builders import container, pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUNNING = Running(started_at=NOW)
DONE = Terminated(exit_code=0, reason="Completed", started_at=NOW, finished_at=NOW)
FAILED = Terminated(exit_code=1, reason="Error", started_at=NOW, finished_at=NOW)
WAITING = WaitingState()


def state(state: State, last: Terminated | None = None) -> ContainerState:
    return ContainerState(state=state, last=last)


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Always", [state(WAITING)], "Pending"),
        ("Always", [state(RUNNING)], "Running"),
        ("Always", [state(RUNNING), state(WAITING)], "Pending"),
        ("Always", [state(DONE)], "Running"),
        ("Always", [state(WAITING, FAILED)], "Running"),
        ("Never", [state(DONE), state(DONE)], "Succeeded"),
        ("Never", [state(DONE), state(FAILED)], "Failed"),
        ("Never", [state(RUNNING), state(FAILED)], "Running"),
        ("OnFailure", [state(DONE)], "Succeeded"),
        ("OnFailure", [state(FAILED)], "Running"),
    ],
)
def test_the_phase_follows_the_containers(
    policy: str, states: list[ContainerState], phase: str
) -> None:
    names = [f"c{i}" for i in range(len(states))]
    wanted = pod(*(container(name) for name in names), restartPolicy=policy)

    assert pod_status.phase(wanted, dict(zip(names, states, strict=True))) == phase


@pytest.mark.parametrize(
    ("policy", "init", "phase"),
    [
        ("Always", state(RUNNING), "Pending"),
        ("Always", state(WAITING), "Pending"),
        ("Never", state(FAILED), "Failed"),
        ("Always", state(WAITING, FAILED), "Pending"),
    ],
)
def test_a_pod_stays_pending_until_its_init_containers_are_done(
    policy: str, init: ContainerState, phase: str
) -> None:
    wanted = pod(container(), init=(container("init"),), restartPolicy=policy)

    assert pod_status.phase(wanted, {"init": init, "main": state(WAITING)}) == phase


def status(wanted: dict[str, Any], states: dict[str, ContainerState], **more: Any) -> Any:
    return pod_status.compute(wanted, states, started_at=NOW, **({"now": NOW} | more))


def conditions(of: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in of["conditions"]}


def test_a_running_pod_is_ready() -> None:
    shown = status(pod(container()), {"main": state(RUNNING)})

    assert set(conditions(shown).values()) == {"True"}
    assert shown["containerStatuses"][0]["ready"] is True
    assert shown["containerStatuses"][0]["state"] == {
        "running": {"startedAt": "2026-01-02T03:04:05Z"}
    }


def test_a_waiting_container_is_named_in_the_ready_condition() -> None:
    waiting = WaitingState(reason="CreateContainerConfigError", message="not granted")

    shown = status(pod(container()), {"main": state(waiting)})

    ready = next(c for c in shown["conditions"] if c["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [main]"
    assert shown["containerStatuses"][0]["state"] == {
        "waiting": {"reason": "CreateContainerConfigError", "message": "not granted"}
    }


def test_an_unfinished_init_container_is_named_in_the_initialized_condition() -> None:
    wanted = pod(container(), init=(container("init"),))

    shown = status(wanted, {"init": state(RUNNING), "main": state(WAITING)})

    assert conditions(shown)["Initialized"] == "False"
    assert shown["initContainerStatuses"][0]["ready"] is False


def test_a_running_sidecar_counts_as_initialized_and_ready() -> None:
    wanted = pod(container(), init=(container("side", restartPolicy="Always"),))

    shown = status(wanted, {"side": state(RUNNING), "main": state(RUNNING)})

    assert shown["phase"] == "Running"
    assert set(conditions(shown).values()) == {"True"}


def test_a_completed_pod_is_not_ready_and_has_the_reason() -> None:
    shown = status(pod(container(), restartPolicy="Never"), {"main": state(DONE)})

    ready = next(c for c in shown["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PodCompleted")


def test_transition_times_change_only_with_the_verdict() -> None:
    first = status(pod(container()), {"main": state(WAITING)})
    later = NOW + timedelta(seconds=60)

    second = status(
        pod(container()), {"main": state(RUNNING)}, now=later, previous=first["conditions"]
    )

    times = {c["type"]: c["lastTransitionTime"] for c in second["conditions"]}
    assert times["PodScheduled"] == "2026-01-02T03:04:05Z"
    assert times["Ready"] == "2026-01-02T03:05:05Z"


def test_the_last_end_is_reported_beside_the_present_state() -> None:
    shown = status(pod(container()), {"main": state(RUNNING, FAILED)})

    assert shown["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1


def test_a_rejected_pod_has_failed_with_the_kubelets_message() -> None:
    shown = pod_status.rejected_status(
        "UnexpectedAdmissionError", "Allocate failed due to x", now=NOW
    )

    assert shown["phase"] == "Failed"
    assert shown["message"] == "Pod Allocate failed due to x"
