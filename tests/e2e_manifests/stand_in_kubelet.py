"""Runs the pods of hami-system as processes, from nothing but their Pod objects.

What a kubelet takes from a spec is taken here: commands, arguments, environment with its references
and `$(NAME)`, volumes of every kind that the manifests have, users, groups, capabilities, probes,
and tokens bound to the pod. In place of an image is what its Dockerfile, or that of the stock
image, would run.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hamicommon.k8s.types import Json
from hamilocal.servers.binaries import nats_server

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NAMESPACE = "hami-system"
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
# Places of the machine itself that pods look into.
MACHINES_OWN = ("/sys", "/proc", "/usr/local/vgpu", "/var/lib/hami", "/tmp/vgpulock")
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
COMMANDS = {
    "hami-scheduler": ["hami-scheduler"],
    "hami-webhook": ["hami-webhook"],
    "hami-metrics": ["hami-metrics"],
    "hami-node-agent": ["hami-node-agent"],
    "postgres": ["bash", "/stand-in/postgres-entrypoint", "postgres"],
}
"""What images run by themselves."""


class Gone(Exception):
    """The pod was deleted while it was looked at."""


@dataclass(slots=True)
class Running:
    """One pod's processes."""

    pod: Json
    folder: Path
    waiting: list[Json]
    started: float
    process: subprocess.Popen[bytes] | None = None
    container: Json = field(default_factory=dict)
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
        self.folder, self.api, self._assets, self._gpu = folder, api, assets, gpu
        self._server, self._ca_file = httpx.URL(server), ca_file
        self.pods: dict[str, Running] = {}

    # What the API server holds

    def get(self, path: str) -> Json:
        answer = self.api.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return dict(answer.json())

    def object(self, kind: str, name: str) -> Json:
        return self.get(f"/api/v1/namespaces/{NAMESPACE}/{kind}/{name}")

    def data(self, kind: str, name: str) -> dict[str, bytes]:
        held = self.object(kind, name).get("data") or {}
        if kind == "secrets":
            return {key: base64.b64decode(value) for key, value in held.items()}
        return {key: str(value).encode() for key, value in held.items()}

    def token(self, pod: Json, audience: str | None, seconds: int) -> str:
        account = pod["spec"].get("serviceAccountName", "default")
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        answer = self.api.post(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
            json={
                "spec": {
                    "audiences": [audience] if audience else None,
                    "expirationSeconds": seconds,
                    "boundObjectRef": reference,
                }
            },
        )
        if answer.status_code == 404:
            raise Gone
        assert answer.status_code == 201, answer.text
        return str(answer.json()["status"]["token"])

    # One look at everything

    def tick(self) -> None:
        """Starts what is new, goes on with what ended, reports."""
        pods = self.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
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

    def _delete_now(self, pod: Json) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        self.api.request("DELETE", path, json={"gracePeriodSeconds": 0})

    def _bind(self, pod: Json) -> None:
        agent = pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "hami-node-agent"
        node = "gpu-0" if agent else "infra-0"
        answer = self.api.post(
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
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        self.pods[pod["metadata"]["uid"]] = Running(pod, folder, containers, time.monotonic())

    def _advance(self, running: Running) -> None:
        if running.phase in ("Succeeded", "Failed"):
            return
        if running.process is not None:
            status = running.process.poll()
            if status is None:
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
            running.container = running.waiting.pop(0)
            running.process = self._start(running, running.container)

    def _is_job(self, running: Running) -> bool:
        return running.pod["spec"].get("restartPolicy") != "Always"

    def _look_whether_ready(self, running: Running) -> None:
        if running.ready_s is not None or self._is_job(running):
            return
        if self._probe(running):
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
        answer = self.api.patch(
            f"/api/v1/namespaces/{NAMESPACE}/pods/{running.name}/status",
            json={"status": status},
            headers={"content-type": "application/strategic-merge-patch+json"},
        )
        assert answer.status_code in (200, 404), answer.text

    def _probe(self, running: Running) -> bool:
        probe = running.container.get("readinessProbe") or {}
        ports = {port["name"]: port["containerPort"] for port in running.container.get("ports", ())}
        if "exec" in probe:
            process = self._start(running, running.container, argv=probe["exec"]["command"])
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
        """As a kubelet does, with a shorter patience."""
        if running.process is None or running.process.poll() is not None:
            return
        running.process.terminate()
        try:
            running.process.wait(20)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()

    def close(self) -> None:
        for running in self.pods.values():
            self.stop(running)

    # From a spec to a process

    def _start(
        self, running: Running, container: Json, *, argv: list[str] | None = None
    ) -> subprocess.Popen[bytes]:
        pod, name = running.pod, container["name"]
        image = container["image"].rpartition("/")[2].partition(":")[0].partition("@")[0]
        env = self._environment(pod, container)
        command = container.get("command") or COMMANDS[image]
        argv = argv or [*command, *container.get("args", ())]
        mounts = self._mounts(running, container)
        kind = "probe" if argv is container.get("readinessProbe", {}).get("exec") else name
        root = Path(tempfile.mkdtemp(prefix="root-", dir=running.folder))
        spec = {
            "root": str(root),
            "mounts": [*mounts, *self._of_image(image)],
            "cwd": "/app" if image.startswith("hami-") else "/",
            "env": self._image_environment(image) | env,
            "argv": [_expanded(part, env) for part in argv],
            "privileges": _privileges(pod, container),
        }
        path = root.with_suffix(".json")
        path.write_text(json.dumps(spec))
        with (running.folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                ["unshare", "--mount", sys.executable, str(HERE / "sandbox.py"), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _environment(self, pod: Json, container: Json) -> dict[str, str]:
        found = {
            "KUBERNETES_SERVICE_HOST": str(self._server.host),
            "KUBERNETES_SERVICE_PORT": str(self._server.port),
            "HOSTNAME": pod["metadata"]["name"],
        }
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                value = self.data("secrets", reference["name"])[reference["key"]].decode()
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                value = self.data("configmaps", reference["name"])[reference["key"]].decode()
            elif "fieldRef" in source:
                value = _field(pod, source["fieldRef"]["fieldPath"])
            else:
                value = _expanded(entry.get("value", ""), found)
            found[entry["name"]] = value
        return found

    def _image_environment(self, image: str) -> dict[str, str]:
        folders = [
            str(Path(sys.executable).parent),
            str(POSTGRES[-1]),
            str(nats_server().parent),
            str(self._assets),
            "/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        env = {"PATH": ":".join(folders), "PYTHONUNBUFFERED": "1", "HOME": "/"}
        return env | (self._gpu["env"] if image == "hami-node-agent" else {})

    def _of_image(self, image: str) -> list[Json]:
        users = self.folder / "passwd"
        users.write_text("root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\n")
        built = {"/etc/hosts": self.folder / "hosts", "/etc/passwd": users, "/stand-in": HERE}
        if image == "hami-scheduler":
            built["/app/migrations"] = PROJECT / "migrations"
        elif image.startswith("hami-"):
            empty = self.folder / "empty"
            empty.mkdir(exist_ok=True)
            built["/app"] = empty
        if image == "hami-node-agent":
            library = PROJECT / "native" / "libvgpu" / "build" / "libvgpu.so"
            built["/opt/hami/libvgpu.so"] = library
        return [
            {"source": str(source), "target": target, "read_only": target != "/etc/hosts"}
            for target, source in built.items()
        ]

    def _mounts(self, running: Running, container: Json) -> list[Json]:
        pod = running.pod
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        found = []
        for mount in container.get("volumeMounts", ()):
            # The token's volume is put in by the API server, under a name of its own.
            source = self._volume(running, volumes[mount["name"]])
            found.append(
                {
                    "source": str(source),
                    "target": mount["mountPath"],
                    "read_only": mount.get("readOnly", False),
                }
            )
        return found

    def _volume(self, running: Running, volume: Json) -> Path:
        if "hostPath" in volume:
            return self._host(volume["hostPath"])
        place = running.folder / "volumes" / volume["name"]
        group = running.pod["spec"].get("securityContext", {}).get("fsGroup", 0)
        if place.exists() and ("emptyDir" in volume or "persistentVolumeClaim" in volume):
            return place
        place.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume or "persistentVolumeClaim" in volume:
            os.chown(place, 0, group)
            place.chmod(0o2775)
            return place
        if "secret" in volume:
            source = volume["secret"]
            files = self.data("secrets", source["secretName"])
            files = _chosen(files, source.get("items"))
            mode = source.get("defaultMode", 0o644)
        elif "configMap" in volume:
            files, mode = self.data("configmaps", volume["configMap"]["name"]), 0o644
            mode = volume["configMap"].get("defaultMode", mode)
        else:
            files, mode = self._projected(running.pod, volume["projected"]), 0o640
        for name, content in files.items():
            path = place / name
            path.write_bytes(content)
            os.chown(path, 0, group)
            path.chmod(mode)
        return place

    def _projected(self, pod: Json, volume: Json) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for source in volume["sources"]:
            if "serviceAccountToken" in source:
                wanted = source["serviceAccountToken"]
                seconds = wanted.get("expirationSeconds", 3600)
                token = self.token(pod, wanted.get("audience"), seconds)
                files[wanted["path"]] = token.encode()
            elif "configMap" in source:
                files["ca.crt"] = self._ca_file.read_bytes()
            else:
                files["namespace"] = NAMESPACE.encode()
        return files

    def _host(self, volume: Json) -> Path:
        path = volume["path"]
        if path.startswith(MACHINES_OWN):
            place = Path(path)
        elif path.startswith("/var/lib/kubelet"):
            place = Path(self._gpu["kubelet"]) / path.removeprefix("/var/lib/kubelet/")
        else:
            place = self.folder / "host" / path[1:]
        if volume.get("type") == "Directory":
            assert place.is_dir(), f"{path}: hostPath type check failed"
        place.mkdir(parents=True, exist_ok=True)
        return place


def _chosen(files: dict[str, bytes], items: list[Json] | None) -> dict[str, bytes]:
    if items is None:
        return files
    return {item["path"]: files[item["key"]] for item in items}


def _expanded(text: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda m: env.get(m[1], m[0]), text)


def _field(pod: Json, path: str) -> str:
    value: Any = pod
    for part in path.split("."):
        value = value[part]
    return str(value)


def _privileges(pod: Json, container: Json) -> list[str]:
    whole = pod["spec"].get("securityContext", {})
    own = container.get("securityContext", {})
    user = own.get("runAsUser", whole.get("runAsUser", 0))
    group = own.get("runAsGroup", whole.get("runAsGroup", 0))
    capabilities = own.get("capabilities", {})
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities.get("add", ()))])
    assert capabilities.get("drop") == ["ALL"], container["name"]
    fs_group = whole.get("fsGroup")
    return [
        f"--reuid={user}",
        f"--regid={group}",
        f"--groups={fs_group}" if fs_group else "--clear-groups",
        "--inh-caps=-all",
        f"--bounding-set={kept}",
        "--no-new-privs",
        "--pdeathsig=SIGKILL",
    ]


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
