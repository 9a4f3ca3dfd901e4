"""Compute a pod's status from its containers' states: phase, conditions, container statuses.

Pure; `pod_worker.py` supplies the states and sends the result. The rules for
phase and conditions are those of kubelet 1.20 (`kubelet_pods.go`, `status/generate.go`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec

HOST_IP = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingState:
    """State of a container that is not running; reason and message as users see them."""

    reason: str = "ContainerCreating"
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """State of a running container."""

    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """State of an ended container; `started_at` None: it never ran."""

    exit_code: int
    reason: str
    finished_at: datetime
    started_at: datetime | None = None
    message: str = ""


State = WaitingState | Running | Terminated


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """All that a container status contains."""

    state: State = WaitingState()
    last: Terminated | None = None
    restart_count: int = 0
    container_id: str = ""


def phase(pod: Json, states: Mapping[str, ContainerState]) -> str:
    """Return Pending, Running, Succeeded or Failed."""
    policy = pod_spec.restart_policy(pod)
    inits = [
        states[c["name"]]
        for c in pod_spec.init_containers(pod)
        if pod_spec.is_ordinary_init(pod, c)
    ]
    if policy == "Never" and any(_exit_code(i) not in (0, None) for i in inits):
        return "Failed"
    if any(_exit_code(i) is None or isinstance(i.state, Running) for i in inits):
        return "Pending"
    apps = [states[c["name"]] for c in pod_spec.app_containers(pod)]
    if any(isinstance(a.state, WaitingState) and a.last is None for a in apps):
        return "Pending"
    if any(isinstance(a.state, Running) for a in apps) or policy == "Always":
        return "Running"
    codes = [_exit_code(a) for a in apps]
    if all(code == 0 for code in codes):
        return "Succeeded"
    return "Failed" if policy == "Never" else "Running"


def _exit_code(container: ContainerState) -> int | None:
    """Return the exit code of the last end; None if the container never ended."""
    if isinstance(container.state, Terminated):
        return container.state.exit_code
    if isinstance(container.state, WaitingState) and container.last is not None:
        return container.last.exit_code
    return None


def compute(
    pod: Json,
    states: Mapping[str, ContainerState],
    *,
    started_at: datetime,
    now: datetime,
    previous: Sequence[Json] = (),
) -> Json:
    """Return the status to patch; `previous`: the last conditions, for transition times."""
    current = phase(pod, states)
    return {
        "phase": current,
        "hostIP": HOST_IP,
        "podIP": HOST_IP,
        "podIPs": [{"ip": HOST_IP}],
        "startTime": stamp(started_at),
        "conditions": _conditions(pod, states, current, now, previous),
        "initContainerStatuses": [
            _container_status(c, states[c["name"]], init=not pod_spec.is_sidecar(pod, c))
            for c in pod_spec.init_containers(pod)
        ],
        "containerStatuses": [
            _container_status(c, states[c["name"]], init=False)
            for c in pod_spec.app_containers(pod)
        ],
    }


def rejected_status(reason: str, message: str, *, now: datetime) -> Json:
    """Return the status of a pod that was not admitted."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod {message}",
        "startTime": stamp(now),
    }


def _conditions(
    pod: Json,
    states: Mapping[str, ContainerState],
    current: str,
    now: datetime,
    previous: Sequence[Json],
) -> list[Json]:
    initialized, ready = _initialized_verdict(pod, states), _ready_verdict(pod, states)
    if current == "Succeeded":
        initialized = {"status": "True", "reason": "PodCompleted"}
        ready = {"status": "False", "reason": "PodCompleted"}
    elif current == "Failed":
        ready = {"status": "False", "reason": "PodFailed"}
    wanted = {
        "PodScheduled": {"status": "True"},
        "Initialized": initialized,
        "ContainersReady": ready,
        "Ready": ready,
    }
    before = {condition["type"]: condition for condition in previous}
    return [_condition(kind, what, before.get(kind), now) for kind, what in wanted.items()]


def _initialized_verdict(pod: Json, states: Mapping[str, ContainerState]) -> Json:
    waiting = [
        c["name"]
        for c in pod_spec.init_containers(pod)
        if not _is_initialized(states[c["name"]], sidecar=pod_spec.is_sidecar(pod, c))
    ]
    message = f"containers with incomplete status: [{' '.join(waiting)}]"
    return _verdict(not waiting, "ContainersNotInitialized", message)


def _ready_verdict(pod: Json, states: Mapping[str, ContainerState]) -> Json:
    unready = [
        c["name"]
        for c in pod_spec.all_containers(pod)
        if not pod_spec.is_ordinary_init(pod, c)
        and not isinstance(states[c["name"]].state, Running)
    ]
    message = f"containers with unready status: [{' '.join(unready)}]"
    return _verdict(not unready, "ContainersNotReady", message)


def _verdict(good: bool, reason: str, message: str) -> Json:
    return {"status": "True"} if good else {"status": "False", "reason": reason, "message": message}


def _condition(kind: str, what: Json, before: Json | None, now: datetime) -> Json:
    unchanged = before is not None and before.get("status") == what["status"]
    at = before.get("lastTransitionTime") if unchanged and before else None
    # reason and message are named even when empty, so that a patch clears older ones.
    return {
        "type": kind,
        "reason": None,
        "message": None,
        **what,
        "lastProbeTime": None,
        "lastTransitionTime": at or stamp(now),
    }


def _is_initialized(container: ContainerState, *, sidecar: bool) -> bool:
    if sidecar:
        return not (isinstance(container.state, WaitingState) and container.last is None)
    return isinstance(container.state, Terminated) and container.state.exit_code == 0


def _container_status(spec: Json, container: ContainerState, *, init: bool) -> Json:
    running = isinstance(container.state, Running)
    done = isinstance(container.state, Terminated) and container.state.exit_code == 0
    status: Json = {
        "name": spec["name"],
        "image": spec.get("image") or "",
        "imageID": "",
        "ready": done if init else running,
        "started": running,
        "restartCount": container.restart_count,
        "state": _state(container.state, container.container_id),
        "lastState": {},
    }
    if container.last is not None:
        status["lastState"] = _state(container.last, "")
    if container.container_id:
        status["containerID"] = container.container_id
    return status


def _state(state: State, container_id: str) -> Json:
    if isinstance(state, Running):
        return {"running": {"startedAt": stamp(state.started_at)}}
    if isinstance(state, WaitingState):
        waiting = {"reason": state.reason}
        return {"waiting": waiting | ({"message": state.message} if state.message else {})}
    terminated: Json = {
        "exitCode": state.exit_code,
        "reason": state.reason,
        "finishedAt": stamp(state.finished_at),
    }
    if state.started_at is not None:
        terminated["startedAt"] = stamp(state.started_at)
    if state.message:
        terminated["message"] = state.message
    if container_id:
        terminated["containerID"] = container_id
    return {"terminated": terminated}


def stamp(moment: datetime) -> str:
    """Format a time as Kubernetes does: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
