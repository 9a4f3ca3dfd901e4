"""hami-scheduler as `k8s/base` runs it, beside an API server that knows users by their tokens.

The environment is the manifest's, with free ports; a folder has the content of Secrets. On a real
API server `hami-bootstrap` makes those files, and `kubectl create token` the tokens.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hamilocal.servers.certificates import Authority, write_kubeconfig
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.bootstrapped import bootstrap
from tests.control_plane import Assets, control_plane
from tests.e2e.conftest import kubernetes_client
from tests.processes import http_ready, running
from tests.waiting import wait

PROJECT = Path(__file__).parents[3]
BASE = PROJECT / "k8s" / "base"
AUDIENCE = "hami-scheduler"
PEOPLE = {"reader": "hami-reader", "operator": "hami-operator", "nobody": ""}
"""ClusterRole of each user."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An API server, the files of `hami-bootstrap`, and a token of each of `PEOPLE`."""

    kubeconfig: Path
    scheduler_kubeconfig: Path
    """Credentials of the scheduler's own identity."""
    files: Path
    authority: Authority
    """Authority of the certificates in `files`."""
    tokens: dict[str, str]
    audience: str


@contextmanager
def real(folder: Path, assets: Assets) -> Iterator[Cluster]:
    """kube-apiserver after the steps that the documentation gives a user."""
    with control_plane(folder, assets=assets) as plane:
        path = f"{_kubectl(folder, assets)}:{os.environ['PATH']}"
        env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": path}

        def sh(*argv: str) -> str:
            done = subprocess.run(
                argv, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        sh("kubectl", "apply", "--kustomize", "k8s/base")
        bootstrap(plane, folder, sh)
        for name, role in PEOPLE.items():
            sh("kubectl", "create", "serviceaccount", name)
            if role:
                account = f"--serviceaccount=default:{name}"
                sh(
                    "kubectl",
                    "create",
                    "clusterrolebinding",
                    name,
                    f"--clusterrole={role}",
                    account,
                )
        create = ("kubectl", "create", "token", "--duration", "1h")
        tokens = {name: sh(*create, name, "--audience", AUDIENCE).strip() for name in PEOPLE}
        system = ("--namespace", "hami-system")
        own = sh(*create, "hami-scheduler", *system).strip()
        files = folder / "files"
        get = ("kubectl", "get", *system, "--output", "json")
        for where, secret in (
            ("tls", "hami-scheduler-tls"),
            ("grant", "hami-grant-key"),
            ("login", "hami-nats-login-key"),
            ("authority", "hami-ca"),
        ):
            data = json.loads(sh(*get, "secret", secret))["data"]
            _write(files / where, {name: base64.b64decode(text) for name, text in data.items()})
        authority = json.loads(sh(*get, "configmap", "hami-ca"))["data"]["ca.crt"]
        _write(files / "ca", {"ca.crt": authority.encode()})
        _device_config(files)
        yield Cluster(
            kubeconfig=plane.kubeconfig,
            scheduler_kubeconfig=write_kubeconfig(
                folder / "scheduler.kubeconfig",
                server=plane.url,
                authority=plane.server.ca_file.read_bytes(),
                token=own,
            ),
            files=files,
            authority=Authority.load(
                files / "authority" / "tls.crt", files / "authority" / "tls.key"
            ),
            tokens=tokens,
            audience=AUDIENCE,
        )


def _kubectl(folder: Path, assets: Assets) -> Path:
    """The folder of a kubectl that leaves validation to the server: a server built without schemas
    publishes none, but validates nevertheless."""
    own = assets.folder / "kubectl"
    binary = str(own) if own.exists() else shutil.which("kubectl")
    if binary is None:
        pytest.skip("kubectl is not installed")
    script = folder / "bin" / "kubectl"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\ncase " $* " in *" apply "*) set -- "$@" --validate=false ;; esac\n'
        f'exec {binary} "$@"\n'
    )
    script.chmod(0o755)
    return script.parent


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """The running process's addresses."""

    extender: str
    operator: str
    probe: str


@contextmanager
def scheduler(cluster: Cluster, folder: Path, backends: dict[str, str]) -> Iterator[Scheduler]:
    """One process of the manifest's Deployment; `backends`: variables of Postgres, Redis, NATS."""
    ports = {name: free_port() for name in ("HTTP", "OPERATOR", "PROBE")}
    env = _manifest_environment(cluster.files)
    for name, port in ports.items():
        variable = f"HAMI_SCHEDULER_{name}_BIND"
        assert variable in env
        host = env[variable].rpartition(":")[0]
        env[variable] = f"{host}:{port}"
    env |= backends | {
        # The Lease is held by hand, as there is no kube-scheduler beside it.
        "HAMI_SCHEDULER_POD_NAME": "pod-0",
        "HAMI_SCHEDULER_KUBE_SCHEDULER": "",
        "KUBECONFIG": str(cluster.scheduler_kubeconfig),
        "HAMI_SCHEDULER_OPERATOR_AUDIENCE": cluster.audience,
    }
    probe = f"http://{LOOPBACK}:{ports['PROBE']}"
    plan = ServerPlan(
        name="hami-scheduler",
        argv=(sys.executable, "-m", "hami_scheduler"),
        cwd=folder,
        log_path=folder / "scheduler.log",
        url=probe,
        port=ports["PROBE"],
        probe=partial(http_ready, f"{probe}/readyz"),
        env=env,
        start_timeout_s=120.0,
    )
    with running(plan, die_with_parent=True):
        _give_lease(cluster.kubeconfig, probe)
        yield Scheduler(
            extender=f"http://localhost:{ports['HTTP']}",
            operator=f"https://localhost:{ports['OPERATOR']}",
            probe=probe,
        )


def _give_lease(kubeconfig: Path, probe: str) -> None:
    """Make the scheduler active: its pod takes the Lease, and renews it until that was seen."""
    place = "/apis/coordination.k8s.io/v1/namespaces/hami-system/leases"
    body: dict[str, Any] = {"metadata": {"name": "hami-scheduler"}}
    body["spec"] = {"holderIdentity": "pod-0_1", "leaseDurationSeconds": 3600}
    with kubernetes_client(kubeconfig) as api:
        made = api.post("/api/v1/namespaces", json={"metadata": {"name": "hami-system"}})
        assert made.status_code in (201, 409), made.text
        lease = api.post(place, json=body).raise_for_status().json()

        def active() -> bool:
            nonlocal lease
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            lease["spec"]["renewTime"] = now
            lease = api.put(f"{place}/hami-scheduler", json=lease).raise_for_status().json()
            return "hami_scheduler_active 1.0\n" in httpx.get(f"{probe}/metrics").text

        wait(active, "the scheduler to see that it has the Lease")


def _manifest_environment(files: Path) -> dict[str, str]:
    documents = yaml.safe_load_all((BASE / "scheduler.yaml").read_text())
    [deployment] = [each for each in documents if each and each["kind"] == "Deployment"]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    env: dict[str, str] = {}
    for entry in container["env"]:
        value = entry.get("value")
        if value is None or entry["name"].startswith("HAMI_NATS_"):
            continue
        folder, _, name = str(value).rpartition("/")
        env[entry["name"]] = str(files / mounts[folder] / name) if folder in mounts else str(value)
    return env


def _device_config(files: Path) -> None:
    documents = yaml.safe_load_all((BASE / "device-config.yaml").read_text())
    [data] = [each["data"] for each in documents if each]
    _write(files / "device-config", {name: text.encode() for name, text in data.items()})


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
