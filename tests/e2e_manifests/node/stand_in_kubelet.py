"""Runs the pods of hami-system as processes, from nothing but their Pod objects.

What a kubelet takes from a spec is taken here: commands, arguments, environment with its references
and `$(NAME)`, volumes of every kind that the manifests have, users, groups, capabilities, probes,
and tokens bound to the pod. In place of an image is what its Dockerfile, or that of the stock
image, would run.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from hamicommon.k8s.types import Json

from tests.e2e_manifests.node.pod_objects import NAMESPACE, Gone, Missing, PodObjects
from tests.e2e_manifests.node.pod_volumes import PodVolumes
from tests.e2e_manifests.pod_processes import POSTGRES, PodProcesses

REFRESH_INTERVAL_S = 5.0
"""Interval of bringing changed Secrets and ConfigMaps into pods; a kubelet takes a minute."""


@dataclass
class Beside:
    """One more container of a pod."""

    container: Json
    process: subprocess.Popen[bytes] | None = None


@dataclass(slots=True)
class Running:
    """One pod's processes."""

    pod: Json
    folder: Path
    waiting: list[Json]
    started: float
    process: subprocess.Popen[bytes] | None = None
    container: Json = field(default_factory=dict)
    beside: list[Beside] = field(default_factory=list)
    """Containers that run with the first one."""
    phase: str = "Pending"
    restarts: int = 0
    ready_s: float | None = None

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))


class StandInKubelet:
    """Binds pods, runs them, reports their phase and readiness."""

    def __init__(
        self, folder: Path, api: httpx.Client, server: str, ca_file: Path, assets: Path, gpu: Json
    ) -> None:
        self.folder = folder
        self.objects = PodObjects(api)
        self.pods: dict[str, Running] = {}
        self._refreshed_s = 0.0
        self._volumes = PodVolumes(self.objects, folder, ca_file, Path(gpu["kubelet"]))
        self._processes = PodProcesses(
            self.objects,
            self._volumes,
            folder,
            server=httpx.URL(server),
            assets=assets,
            gpu_env=gpu["env"],
        )

    def tick(self) -> None:
        """Start new pods, continue those whose container ended, and report their status."""
        pods = self.objects.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        present = {pod["metadata"]["uid"] for pod in pods}
        for uid in set(self.pods) - present:
            self.stop(self.pods.pop(uid))
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp"):
                if uid in self.pods:
                    self.stop(self.pods.pop(uid))
                self._delete_now(pod)
            elif not pod["spec"].get("nodeName"):
                self._bind(pod)
            elif uid not in self.pods:
                self._begin(pod)
        for uid, running in list(self.pods.items()):
            try:
                self._advance(running)
            except Gone:
                self.stop(self.pods.pop(uid))
        if time.monotonic() - self._refreshed_s > REFRESH_INTERVAL_S:
            for running in self.pods.values():
                self._volumes.refresh(running.pod, running.folder)
            self._refreshed_s = time.monotonic()

    def _delete_now(self, pod: Json) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        self.objects.api.request("DELETE", path, json={"gracePeriodSeconds": 0})

    def _bind(self, pod: Json) -> None:
        agent = pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "hami-node-agent"
        node = "gpu-0" if agent else "infra-0"
        answer = self.objects.api.post(
            f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/binding",
            json={
                "metadata": {"name": pod["metadata"]["name"]},
                "target": {"kind": "Node", "name": node},
            },
        )
        # It may be bound or gone by now.
        assert answer.status_code in (201, 404, 409), answer.text

    def _begin(self, pod: Json) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"{pod['metadata']['name']}-", dir=self.folder))
        folder.chmod(0o755)
        first, *others = pod["spec"]["containers"]
        containers = [*pod["spec"].get("initContainers", ()), first]
        running = Running(pod, folder, containers, time.monotonic())
        running.beside = [Beside(container) for container in others]
        self.pods[pod["metadata"]["uid"]] = running

    def _advance(self, running: Running) -> None:
        if running.phase in ("Succeeded", "Failed"):
            return
        if running.process is not None:
            status = running.process.poll()
            if status is None:
                if not running.waiting:
                    self._advance_beside(running)
                self._look_whether_ready(running)
                return
            if status == 0 and self._is_job(running):
                running.process = None
                if not running.waiting:
                    self._report(running, "Succeeded", ready=False)
                    return
            else:
                # As restartPolicy Always or OnFailure would.
                running.restarts += 1
                running.waiting.insert(0, running.container)
                running.process = None
        if running.waiting:
            running.container = running.waiting[0]
            with contextlib.suppress(Missing):
                running.process = self._processes.start(
                    running.pod, running.folder, running.container
                )
                running.waiting.pop(0)

    def _advance_beside(self, running: Running) -> None:
        for each in running.beside:
            if each.process is not None:
                if each.process.poll() is None:
                    continue
                running.restarts += 1
            with contextlib.suppress(Missing):
                each.process = self._processes.start(running.pod, running.folder, each.container)

    def _is_job(self, running: Running) -> bool:
        return running.pod["spec"].get("restartPolicy") != "Always"

    def _look_whether_ready(self, running: Running) -> None:
        if running.ready_s is not None or self._is_job(running):
            return
        containers = (running.container, *(each.container for each in running.beside))
        if all(self._probe(running, container) for container in containers):
            running.ready_s = time.monotonic() - running.started
            self._report(running, "Running", ready=True)

    def _report(self, running: Running, phase: str, *, ready: bool) -> None:
        running.phase = phase
        truth = "True" if ready else "False"
        names = [container["name"] for container in running.pod["spec"]["containers"]]
        state: Json = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
        status = {
            "phase": phase,
            "conditions": [
                {"type": kind, "status": truth} for kind in ("Ready", "ContainersReady")
            ],
            "containerStatuses": [
                {
                    "name": name,
                    "ready": ready,
                    "restartCount": running.restarts,
                    "image": "",
                    "imageID": "",
                    "state": state,
                }
                for name in names
            ],
        }
        answer = self.objects.api.patch(
            f"/api/v1/namespaces/{NAMESPACE}/pods/{running.name}/status",
            json={"status": status},
            headers={"content-type": "application/strategic-merge-patch+json"},
        )
        assert answer.status_code in (200, 404), answer.text

    def _probe(self, running: Running, container: Json) -> bool:
        probe = container.get("readinessProbe") or {}
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        if "exec" in probe:
            argv = probe["exec"]["command"]
            process = self._processes.start(running.pod, running.folder, container, argv=argv)
            return process.wait(60) == 0
        if "httpGet" in probe:
            get = probe["httpGet"]
            url = f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{ports[get['port']]}"
            try:
                answer = httpx.get(url + get["path"], verify=False, timeout=5)
            except httpx.HTTPError:
                return False
            return answer.status_code < 400
        if "tcpSocket" in probe:
            with socket.socket() as connection:
                return connection.connect_ex(("127.0.0.1", ports[probe["tcpSocket"]["port"]])) == 0
        return True

    def stop(self, running: Running) -> None:
        """Stop the pod's processes as a kubelet does, after a shorter grace period."""
        for process in (running.process, *(each.process for each in running.beside)):
            if process is None or process.poll() is not None:
                continue
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        for running in self.pods.values():
            self.stop(running)


def what_is_missing(assets: Path) -> str | None:
    """Why the manifests can't be run on this machine; None: they can."""
    if os.geteuid() != 0:
        return "namespaces and users of containers need root"
    for program in ("unshare", "setpriv", "ip", "redis-server", "openssl"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not POSTGRES:
        return "PostgreSQL with TLS is not installed (/usr/lib/postgresql)"
    for name in ("kubectl", "kube-controller-manager"):
        if not (assets / name).exists():
            return f"{assets} (KUBEBUILDER_ASSETS) holds no {name}"
    return None
