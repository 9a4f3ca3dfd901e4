"""Real control plane parts on a private machine; skipped, with the reason, elsewhere."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from hamicommon.k8s.types import Json
from hamilocal.system.options import LocalNode, fakegpu_config

from tests.control_plane import Assets, ControlPlane, control_plane, node_user
from tests.e2e.conftest import kubernetes_client
from tests.e2e_manifests.node.pod_objects import NAMESPACE
from tests.e2e_manifests.node.private_machine import private_machine
from tests.e2e_manifests.node.stand_in_kubelet import StandInKubelet, what_is_missing
from tests.e2e_manifests.pod_processes import HERE, PROJECT
from tests.kubectl import kubectl_for

T = TypeVar("T")

NODE = "gpu-0"
DEADLINE_S = 300.0
COMMAND_S = 600.0
AUDIT_POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}


@dataclass(slots=True)
class Cluster:
    """A cluster with an administrator's means and its running pods."""

    folder: Path
    plane: ControlPlane
    api: httpx.Client
    pods: StandInKubelet
    hosts: Path
    services_led: bool = False
    relays: list[subprocess.Popen[bytes]] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)

    def sh(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command as the administrator; a warning of the API server is a failure."""
        started = time.monotonic()
        done = subprocess.run(
            argv,
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        assert "Warning" not in done.stderr, done.stderr
        self.times.append((" ".join(argv), time.monotonic() - started))
        return done

    def run(self, *argv: str) -> None:
        """Run a command that waits for pods, while they make progress; its output goes to a log."""
        started = time.monotonic()
        log = self.folder / "commands.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                while process.poll() is None:
                    self.pods.tick()
                    assert time.monotonic() - started < COMMAND_S, f"{argv}: no end\n{self.why()}"
                    time.sleep(0.2)
            finally:
                process.kill()
                process.wait()
        printed = log.read_text()[-3000:]
        assert process.returncode == 0, f"{argv}: {printed}\n{self.why()}"
        self.times.append((" ".join(argv), time.monotonic() - started))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of an administrator's commands."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.plane.kubeconfig),
            "PATH": f"{self.folder / 'bin'}:{self.plane.assets.folder}:{os.environ['PATH']}",
        }

    def single(self, *components: str) -> Path:
        """An overlay of k8s/base with one replica of each, and never two pods of one: a machine
        has each port once."""
        folder = self.folder / "single"
        folder.mkdir(exist_ok=True)
        k8s = Path(os.path.relpath(PROJECT / "k8s", folder))
        names = ("hami-scheduler", "hami-webhook")
        patch = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "each"},
            "spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}},
        }
        kustomization = {
            "resources": [str(k8s / "base")],
            "components": [str(k8s / "components" / name) for name in components],
            "replicas": [{"name": name, "count": 1} for name in names],
            "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(patch)}],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(kustomization))
        return folder

    def wait(
        self,
        check: Callable[[], T | None],
        what: str,
        *,
        timeout_s: float = DEADLINE_S,
        why: Callable[[], str] = lambda: "",
    ) -> T:
        """Until `check` gives something; pods go on in between."""
        started = time.monotonic()
        while not (found := check()):
            if self.services_led:
                self.pods.tick()
            waited_s = time.monotonic() - started
            assert waited_s < timeout_s, (
                f"waited {waited_s:.0f} s for {what}\n{why()}\n{self.why()}"
            )
            time.sleep(0.2)
        self.times.append((f"until {what}", time.monotonic() - started))
        return found

    def why(self) -> str:
        """The ends of the logs of all that is not ready."""
        events = self.pods.objects.get(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        lines = [
            f"{e['involvedObject'].get('name')}: {e['reason']}: {e.get('message')}"
            for e in events
            if e.get("type") == "Warning"
        ]
        lines += [
            f"--- {name}: {(self.folder / name).read_text(errors='replace')[-1500:]}"
            for name in ("kubelet.log", "controllers.log")
        ]
        for running in self.pods.pods.values():
            if running.phase not in ("Succeeded",) and running.ready_s is None:
                lines.append(f"--- {running.name} ({running.restarts} restarts)")
                lines.append(running.log[-1500:])
        return "\n".join(lines)

    def ready(self, name: str) -> bool:
        """Return whether the pod of this application is ready, or its Job's has succeeded."""
        return any(
            running.ready_s is not None or running.phase == "Succeeded"
            for running in self.pods.pods.values()
            if running.pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == name
        )

    def lead_services(self) -> None:
        """Lead names to addresses and ports to the pods' ports, as DNS and kube-proxy would."""
        lines = ["127.0.0.1 localhost"]
        for service in self.pods.objects.get(f"/api/v1/namespaces/{NAMESPACE}/services")["items"]:
            name, address = service["metadata"]["name"], service["spec"]["clusterIP"]
            lines.append(f"{address} {name}.{NAMESPACE}.svc {name}.{NAMESPACE} {name}")
            for port in service["spec"]["ports"]:
                target = self._container_port(name, port["targetPort"])
                if target != port["port"]:
                    argv = [sys.executable, str(HERE / "relay.py"), address, str(port["port"])]
                    self.relays.append(subprocess.Popen([*argv, str(target)]))
        self.hosts.write_text("\n".join(lines) + "\n")
        self.services_led = True

    def _container_port(self, application: str, name: str) -> int:
        for kind in ("deployments", "statefulsets"):
            found = self.pods.objects.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}")["items"]
            for each in found:
                if each["metadata"]["name"] == application:
                    container = each["spec"]["template"]["spec"]["containers"][0]
                    return {p["name"]: p["containerPort"] for p in container["ports"]}[name]
        raise AssertionError(f"no pods behind the Service {application}")

    def denied_calls(self) -> list[Json]:
        """Calls of our accounts and of the node that the API server refused."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [
            {
                "user": event["user"]["username"],
                "verb": event["verb"],
                "path": event["requestURI"],
                "code": event["responseStatus"].get("code"),
            }
            for event in map(json.loads, lines)
            if event["stage"] == "ResponseComplete"
            and event["user"]
            .get("username", "")
            .startswith(("system:serviceaccount:hami", "system:node:"))
            and event["responseStatus"].get("code") in (401, 403)
        ]

    def calls(self) -> dict[str, int]:
        """Number of served calls by account of ours."""
        counted: dict[str, int] = {}
        for line in (self.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            name = event["user"].get("username", "")  # none: an unknown token, 401
            if event["stage"] == "ResponseComplete" and f":{NAMESPACE}:" in name:
                counted[name.rpartition(":")[2]] = counted.get(name.rpartition(":")[2], 0) + 1
        return counted


@pytest.fixture(scope="module")
def cluster(kubernetes_assets: Assets) -> Iterator[Cluster]:
    """etcd, API server (RBAC, Node, audit log), controller manager, two nodes."""
    missing = what_is_missing(kubernetes_assets.folder)
    if missing:
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="hami-m-", dir="/srv"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        hosts = stack.enter_context(private_machine(folder))
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        plane = stack.enter_context(
            control_plane(
                folder / "plane",
                assets=kubernetes_assets,
                users=[node_user(NODE)],
                arguments=[
                    f"--audit-policy-file={policy}",
                    f"--audit-log-path={folder / 'audit.log'}",
                    "--enable-admission-plugins=NodeRestriction",
                    # Nothing leads out of the private machine; the address is for documentation.
                    "--advertise-address=192.0.2.1",
                ],
                service_accounts=True,
            )
        )
        spawn_controllers(stack, folder, plane)
        api = stack.enter_context(kubernetes_client(plane.kubeconfig))
        gpu = _gpu_node(stack, folder, plane)
        pods = StandInKubelet(
            folder,
            api,
            plane.url,
            plane.server.ca_file,
            kubernetes_assets.folder,
            gpu,
        )
        cluster = Cluster(folder=folder, plane=plane, api=api, pods=pods, hosts=hosts)
        stack.callback(lambda: [_end(each) for each in cluster.relays])
        stack.callback(pods.close)
        answer = api.post(
            "/api/v1/nodes",
            json={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "infra-0"}},
        )
        assert answer.status_code == 201, answer.text
        cluster.wait(lambda: api.get("/openapi/v2").status_code == 200, "the API is described")
        kubectl_for(api, kubernetes_assets.folder / "kubectl", folder / "bin")
        yield cluster


def spawn_controllers(stack: ExitStack, folder: Path, plane: ControlPlane) -> None:
    """kube-controller-manager, until the stack ends."""
    key = folder / "plane" / "apiserver" / "service-account.key"
    argv = [
        str(plane.assets.folder / "kube-controller-manager"),
        f"--kubeconfig={plane.kubeconfig}",
        f"--service-account-private-key-file={key}",
        f"--root-ca-file={plane.server.ca_file}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # The nodes here have no leases.
        "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller",
    ]
    _spawn(stack, folder, "controllers", argv, {})


def _gpu_node(stack: ExitStack, folder: Path, plane: ControlPlane) -> Json:
    """hamictl's kubelet, as the node's own user, with the files of the agent's image and host."""
    cards = LocalNode(name=NODE, gpus=2, model="NVIDIA A100-SXM4-80GB", memory_mib=81920)
    described = folder / "fakegpu.json"
    state = folder / f"fakegpu-{secrets.token_hex(4)}.state"
    described.write_text(json.dumps(fakegpu_config(cards, system=str(folder), state=str(state))))
    native = PROJECT / "native"
    user = node_user(NODE)
    argv = [
        *(sys.executable, "-m", "kubelocal.kubelet", "--node", NODE),
        *("--kubeconfig", str(plane.server.kubeconfigs[user.name])),
        *("--root", str(folder / "kubelet"), "--fakegpu-config", str(described)),
        *("--native-dir", str(native), "--cdi-dir", str(folder / "cdi")),
        "--stop-containers-on-exit",
        # HAMi's own pods are the stand-in's; two kubelets would report each other's as failed.
        f"--skip-namespace={NAMESPACE}",
    ]
    _spawn(stack, folder, "kubelet", argv, {})
    env = {
        "LD_LIBRARY_PATH": str(native / "fakegpu" / "build"),
        "FAKEGPU_CONFIG": str(described),
    }
    return {"kubelet": str(folder / "kubelet"), "env": env}


def _spawn(
    stack: ExitStack, folder: Path, name: str, argv: list[str], env: dict[str, str]
) -> subprocess.Popen[bytes]:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "SIGKILL", "--", *argv],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
