"""Controllers of Deployments, ReplicaSets, StatefulSets and Jobs for the emulated API server.

`python -m kubelocal.controllers --kubeconfig FILE`. A real cluster has kube-controller-manager for
this; the local system has not. There are no roll-outs: a workload owns its pods directly, and
missing ones are created. `plan` decides, pure; `Controller` watches and acts.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from hamicommon import telemetry
from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.settings import TelemetrySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """One workload kind."""

    name: str
    api_version: str
    plural: str

    def collection(self, namespace: str = "") -> str:
        """Return the API path of the collection in one namespace, or in all."""
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"/apis/{self.api_version}/{where}{self.plural}"


KINDS = (
    WorkloadKind(name="Deployment", api_version="apps/v1", plural="deployments"),
    WorkloadKind(name="ReplicaSet", api_version="apps/v1", plural="replicasets"),
    WorkloadKind(name="StatefulSet", api_version="apps/v1", plural="statefulsets"),
    WorkloadKind(name="Job", api_version="batch/v1", plural="jobs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """Changes that make a workload's pods match its spec."""

    create: tuple[Json, ...] = ()
    delete: tuple[str, ...] = ()
    status: Mapping[str, int] | None = None
    """New status of the workload, if it differs."""


def plan(kind: WorkloadKind, workload: Json, owned: Sequence[Json]) -> WorkloadPlan:
    """Compare a workload with the pods that it controls."""
    if workload["metadata"].get("deletionTimestamp"):
        return WorkloadPlan()
    alive = [pod for pod in owned if _is_alive(pod)]
    succeeded = sum(_phase(pod) == "Succeeded" for pod in owned)
    failed = sum(_phase(pod) == "Failed" for pod in owned)
    spec = workload["spec"]
    if kind.name == "Job":
        left = spec.get("completions", 1) - succeeded
        gave_up = failed > spec.get("backoffLimit", 6)
        wanted = 0 if gave_up else max(0, min(spec.get("parallelism", 1), left))
        status = {"active": len(alive), "succeeded": succeeded, "failed": failed}
    else:
        wanted = spec.get("replicas", 1)
        ready = sum(_is_ready(pod) for pod in alive)
        status = {"replicas": len(alive), "readyReplicas": ready}
        if kind.name == "Deployment":
            status["availableReplicas"] = ready
    surplus = sorted(alive, key=lambda pod: (_is_ready(pod), pod["metadata"]["name"]))
    existing = {pod["metadata"]["name"] for pod in owned}
    return WorkloadPlan(
        create=tuple(_missing(kind, workload, existing, wanted - len(alive))),
        delete=tuple(pod["metadata"]["name"] for pod in surplus[: max(0, len(alive) - wanted)]),
        status=None if _has_status(workload, status) else status,
    )


def owner_uid(pod: Json) -> str | None:
    """Return the uid of the pod's controller."""
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return str(owner["uid"])
    return None


def _missing(kind: WorkloadKind, workload: Json, existing: set[str], count: int) -> list[Json]:
    made: list[Json] = []
    number = 0
    while len(made) < count:
        name = _pod_name(kind, workload, number)
        if name not in existing:
            made.append(_pod(kind, workload, name))
        number += 1
    return made


def _pod_name(kind: WorkloadKind, workload: Json, number: int) -> str:
    name = workload["metadata"]["name"]
    if kind.name == "StatefulSet":
        return f"{name}-{number}"
    seed = orjson.dumps([workload["metadata"]["uid"], number])
    return f"{name}-{hashlib.sha256(seed).hexdigest()[:5]}"


def _pod(kind: WorkloadKind, workload: Json, name: str) -> Json:
    template = copy.deepcopy(workload["spec"]["template"])
    metadata = template.get("metadata") or {}
    spec = template["spec"]
    if kind.name == "Job":
        spec.setdefault("restartPolicy", "Never")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": metadata.get("labels") or {},
            "annotations": metadata.get("annotations") or {},
            "name": name,
            "namespace": workload["metadata"]["namespace"],
            "ownerReferences": [
                {
                    "apiVersion": kind.api_version,
                    "kind": kind.name,
                    "name": workload["metadata"]["name"],
                    "uid": workload["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _is_alive(pod: Json) -> bool:
    ended = _phase(pod) in ("Succeeded", "Failed")
    return not ended and not pod["metadata"].get("deletionTimestamp")


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _has_status(workload: Json, status: Mapping[str, int]) -> bool:
    current = workload.get("status") or {}
    return all(current.get(key, 0) == value for key, value in status.items())


logger = logging.getLogger(__name__)

# Interval of retries for a refused pod (quota, webhook); changes are handled immediately.
RETRY_S = 5.0


class Controller:
    """Watch workloads and pods, and check every workload in each round."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._changed = asyncio.Event()
        self._workloads = {kind: self._informer(kind.collection()) for kind in KINDS}
        self._pods = self._informer("/api/v1/pods")

    def _informer(self, path: str) -> Informer:
        return Informer(
            self._api,
            path,
            on_upsert=lambda _new, _old: self._changed.set(),
            on_delete=lambda _last: self._changed.set(),
        )

    async def run(self) -> None:
        """Run until cancelled."""
        informers = [*self._workloads.values(), self._pods]
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            while True:
                self._changed.clear()
                await self._round()
                try:
                    async with asyncio.timeout(RETRY_S):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _round(self) -> None:
        owned: dict[str, list[Json]] = {}
        for pod in self._pods.store.values():
            owned.setdefault(owner_uid(pod) or "", []).append(pod)
        for kind, informer in self._workloads.items():
            for workload in list(informer.store.values()):
                uid = workload["metadata"]["uid"]
                await self._carry_out(kind, workload, plan(kind, workload, owned.get(uid, [])))

    async def _carry_out(self, kind: WorkloadKind, workload: Json, wanted: WorkloadPlan) -> None:
        namespace, name = workload["metadata"]["namespace"], workload["metadata"]["name"]
        pods = f"/api/v1/namespaces/{namespace}/pods"
        try:
            for pod in wanted.create:
                await self._api.create(pods, pod)
            for pod_name in wanted.delete:
                await self._api.delete(f"{pods}/{pod_name}")
            if wanted.status is not None:
                path = f"{kind.collection(namespace)}/{name}/status"
                await self._api.patch(path, {"status": dict(wanted.status)})
        except (Conflict, NotFound):
            # The store is behind the server; the event with the change will follow.
            return
        except HamiError as exc:
            logger.warning(
                "Ignoring a workload of an unsupported kind",
                extra={"workload": f"{kind.name}/{name}", "why": str(exc)},
            )


async def serve(kubeconfig: Path) -> None:
    """Open a client and run the controllers."""
    async with open_kube_api(kubeconfig) as api:
        await Controller(api).run()


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m kubelocal.controllers")
    parser.add_argument("--kubeconfig", required=True, type=Path)
    given = parser.parse_args()
    telemetry.setup("hami-workloads", TelemetrySettings())
    asyncio.run(serve(given.kubeconfig))


if __name__ == "__main__":
    main()
