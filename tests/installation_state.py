"""An installation of `k8s/base` as an API server holds it, and how each part of it breaks."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.serialization import Encoding
from hamicommon.tls import authority_certificate, new_key

BASE = Path(__file__).parents[1] / "k8s" / "base"
RELEASE = BASE.parents[1].joinpath("VERSION").read_text().strip().replace(".", "-")
"""Version at the end of the names of Jobs."""
NAMESPACE = "hami-system"
PLACE = f"/api/v1/namespaces/{NAMESPACE}"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook"
_NOW = datetime.now(UTC)
BUNDLE = base64.b64encode(
    authority_certificate(
        "hami", new_key(), not_before=_NOW, not_after=_NOW + timedelta(days=9)
    ).public_bytes(Encoding.PEM)
).decode()
ENDED = base64.b64encode(
    authority_certificate(
        "hami", new_key(), not_before=_NOW - timedelta(days=9), not_after=_NOW - timedelta(days=1)
    ).public_bytes(Encoding.PEM)
).decode()
Json = dict[str, Any]
COUNTS = {"replicas", "readyReplicas", "numberReady", "currentNumberScheduled"}
State = dict[str, Json]
"""By path."""
_PLACES = {
    "Deployment": f"{APPS}/deployments",
    "StatefulSet": f"{APPS}/statefulsets",
    "DaemonSet": f"{APPS}/daemonsets",
    "Service": f"{PLACE}/services",
    "Job": JOBS,
    "MutatingWebhookConfiguration": REGISTRATION.rpartition("/")[0],
}


def ready() -> State:
    """Everything is there, and all pods are ready."""
    found: State = {}
    for path in sorted(BASE.rglob("*.yaml")):
        if path.name == "kustomization.yaml":
            continue
        for each in filter(None, yaml.safe_load_all(path.read_text())):
            if each["kind"] not in _PLACES:
                continue
            if each["kind"] == "Job":
                each["status"] = {"succeeded": 1}
            elif each["kind"] == "DaemonSet":
                each["status"] = {
                    "desiredNumberScheduled": 3,
                    "numberReady": 3,
                    "currentNumberScheduled": 3,
                    "numberMisscheduled": 0,
                }
            elif each["kind"] in ("Deployment", "StatefulSet"):
                count = each["spec"]["replicas"]
                each["status"] = {"replicas": count, "readyReplicas": count}
            for hook in each.get("webhooks", ()):
                hook["clientConfig"]["caBundle"] = BUNDLE
            found[f"{_PLACES[each['kind']]}/{each['metadata']['name']}"] = each
    found[f"{PLACE}/configmaps/hami-ca"] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "hami-ca"},
        "data": {"ca.crt": "-"},
    }
    return found


def break_state(breaks: Callable[[State], None]) -> State:
    """The complete state after that change."""
    state = copy.deepcopy(ready())
    breaks(state)
    return state


def _remove(path: str) -> Callable[[State], None]:
    return lambda state: state.__delitem__(path) if path in state else None


def _lacks(path: str, status: Json) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[path]["status"] = {**state[path].get("status", {}), **status}

    return change


def _waits(path: str, name: str, waiting: Json) -> Callable[[State], None]:
    """No pod of the workload is ready, and one shows why."""

    def change(state: State) -> None:
        state[path]["status"]["readyReplicas"] = 0
        pod: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-0", "labels": {"app.kubernetes.io/name": name}},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
            "status": {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": "main",
                        "image": "none",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"waiting": waiting},
                    }
                ],
            },
        }
        state[f"{PLACE}/pods/{name}-0"] = pod

    return change


def _refuse_pods(path: str, maker: str, message: str) -> Callable[[State], None]:
    """Set the workload's counts to 0, and add an event with the reason for its pods' maker."""

    def change(state: State) -> None:
        status = state[path]["status"]
        status.update(dict.fromkeys(status.keys() & COUNTS, 0))
        state[f"{PLACE}/events/{maker}.1"] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{maker}.1", "namespace": NAMESPACE},
            "involvedObject": {"namespace": NAMESPACE, "name": maker},
            "reason": "FailedCreate",
            "message": message,
        }

    return change


def refusals(state: State) -> dict[str, str]:
    """Return the messages of refused pods by the maker of the pods."""
    events = [each for path, each in state.items() if path.startswith(f"{PLACE}/events/")]
    return {each["involvedObject"]["name"]: each["message"] for each in events}


def _scaled_to_none(path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        state[path]["spec"]["replicas"] = 0
        state[path]["status"]["readyReplicas"] = 0

    return change


def _distrust(state: State) -> None:
    for hook in state[REGISTRATION]["webhooks"]:
        del hook["clientConfig"]["caBundle"]


def _garbage(state: State) -> None:
    for hook in state[REGISTRATION]["webhooks"]:
        hook["clientConfig"]["caBundle"] = "Z2FyYmFnZQ=="


def _end_certificate(state: State) -> None:
    for hook in state[REGISTRATION]["webhooks"]:
        hook["clientConfig"]["caBundle"] = ENDED


def _not_made(state: State) -> None:
    del state[f"{PLACE}/configmaps/hami-ca"]
    state[f"{JOBS}/hami-bootstrap-{RELEASE}"]["status"] = {"active": 1}


APPLY = "kubectl apply --kustomize k8s/base"
CASES: dict[str, tuple[Callable[[State], None], str, str, str]] = {
    "no authority": (
        _not_made,
        "credentials",
        f"Job hami-bootstrap-{RELEASE} has not created",
        "logs job",
    ),
    "no Postgres": (
        _remove(f"{APPS}/statefulsets/hami-postgres"),
        "Postgres",
        "hami-postgres not found in hami-system",
        APPLY,
    ),
    "no volume for Postgres": (
        _lacks(f"{APPS}/statefulsets/hami-postgres", {"readyReplicas": 0}),
        "Postgres",
        "hami-postgres: 0 of 1 pods are ready",
        "describe pods -l app.kubernetes.io/name=hami-postgres",
    ),
    "no Redis": (
        _remove(f"{APPS}/statefulsets/hami-redis"),
        "Redis",
        "hami-redis not found in hami-system",
        APPLY,
    ),
    "no NATS": (_remove(f"{APPS}/statefulsets/hami-nats"), "NATS", "hami-nats not found in", APPLY),
    "migrations that fail": (
        _lacks(f"{JOBS}/hami-migrations-{RELEASE}", {"succeeded": None, "failed": 3}),
        "migrations",
        f"Job hami-migrations-{RELEASE} is not done",
        f"logs job/hami-migrations-{RELEASE}",
    ),
    "no scheduler": (
        _remove(f"{APPS}/deployments/hami-scheduler"),
        "scheduler",
        "hami-scheduler not found in hami-system",
        APPLY,
    ),
    "an image that is not found": (
        _waits(
            f"{APPS}/deployments/hami-scheduler",
            "hami-scheduler",
            {"reason": "ErrImagePull", "message": "not found"},
        ),
        "scheduler",
        "hami-scheduler: 0 of 2 pods are ready (ErrImagePull: not found)",
        "describe pods",
    ),
    "a quota of system priorities": (
        _refuse_pods(
            f"{APPS}/deployments/hami-scheduler",
            "hami-scheduler-7d9f",
            'pods "hami-scheduler-7d9f-x" is forbidden: insufficient quota to match these scopes: '
            "[{PriorityClass In [system-node-critical system-cluster-critical]}]",
        ),
        "scheduler",
        "0 of 2 pods are ready (creating a pod is refused: pods",
        "--set global.priorityClassName=,devicePlugin.priorityClassName=",
    ),
    "Pod Security of the namespace": (
        _refuse_pods(
            f"{APPS}/daemonsets/hami-node-agent",
            "hami-node-agent",
            'pods "hami-node-agent-x" is forbidden: violates PodSecurity "restricted:latest": '
            "host namespaces (hostPID=true)",
        ),
        "agents",
        "0 of 3 pods are ready (creating a pod is refused: pods",
        "kubectl label --overwrite namespace hami-system pod-security.kubernetes.io/enforce=",
    ),
    "a container that ends again and again": (
        _waits(
            f"{APPS}/statefulsets/hami-nats",
            "hami-nats",
            {"reason": "CrashLoopBackOff", "message": "back-off 1m20s"},
        ),
        "NATS",
        "hami-nats: 0 of 1 pods are ready (CrashLoopBackOff: back-off 1m20s)",
        "logs --previous hami-nats-0",
    ),
    "no registration": (
        _remove(REGISTRATION),
        "webhook",
        "MutatingWebhookConfiguration hami-webhook not found",
        APPLY,
    ),
    "a webhook with a garbage authority": (
        _garbage,
        "webhook",
        "holds no certificates",
        "get jobs",
    ),
    "a webhook whose authority ended": (_end_certificate, "webhook", "has ended", "get jobs"),
    "an untrusted webhook": (_distrust, "webhook", "the API server does not trust it", "get jobs"),
    "one webhook of two": (
        _lacks(f"{APPS}/deployments/hami-webhook", {"readyReplicas": 1}),
        "webhook",
        "hami-webhook: 1 of 2 pods are ready",
        "describe pods",
    ),
    "a webhook that is scaled to 0": (
        _scaled_to_none(f"{APPS}/deployments/hami-webhook"),
        "webhook",
        "hami-webhook: scaled to 0",
        "scale --replicas=1 deployment/hami-webhook",
    ),
    "a store that is scaled to 0": (
        _scaled_to_none(f"{APPS}/statefulsets/hami-redis"),
        "Redis",
        "hami-redis: scaled to 0",
        "scale --replicas=1 statefulset/hami-redis",
    ),
    "no node with the label": (
        _lacks(
            f"{APPS}/daemonsets/hami-node-agent", {"desiredNumberScheduled": 0, "numberReady": 0}
        ),
        "agents",
        "no node has the label gpu=on",
        "kubectl label node NODE gpu=on",
    ),
    "an agent that is not ready": (
        _lacks(f"{APPS}/daemonsets/hami-node-agent", {"numberReady": 2}),
        "agents",
        "hami-node-agent: 2 of 3 pods are ready",
        "describe pods",
    ),
    "no metrics": (
        _remove(f"{APPS}/deployments/hami-metrics"),
        "metrics",
        "hami-metrics not found in hami-system",
        APPLY,
    ),
}
"""By fault: how, the only part that is missing then, and its sentence and next step."""
ORDER = (
    *("credentials", "Postgres", "Redis", "NATS", "scheduler", "webhook"),
    *("agents", "metrics"),
)
