"""API servers for contract tests: ours always, the real one where KUBEBUILDER_ASSETS names it."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from hamicommon.k8s.types import Json
from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.control_plane import ADMIN, Assets, control_plane, make_pki
from tests.processes import http_ready, running
from tests.waiting import PATIENCE_S

TOKEN = "contract-test-token"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running API server, asked as its administrator in a namespace of one test."""

    kind: str
    client: httpx.Client
    kubeconfig: Path
    namespace: str = "default"
    minor: int = 99

    def path(self, plural: str, name: str = "", *, api: str = "/api/v1") -> str:
        path = f"{api}/namespaces/{self.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    def create(self, plural: str, body: Json, *, api: str = "/api/v1") -> Json:
        return self.ok(self.client.post(self.path(plural, api=api), json=body))

    def get(self, plural: str, name: str) -> Json:
        return self.ok(self.client.get(self.path(plural, name)))

    def patch(self, path: str, patch: object, media: str = MERGE_PATCH) -> httpx.Response:
        headers = {"content-type": media}
        return self.client.patch(path, content=orjson.dumps(patch), headers=headers)

    @staticmethod
    def ok(answer: httpx.Response) -> Json:
        assert answer.status_code in (200, 201, 202), answer.text
        body: Json = answer.json()
        return body

    def watch(self, plural: str, seconds: int = 1, **query: str) -> list[Json]:
        """All events of a watch that ends after some seconds."""
        parameters = {"watch": "true", "timeoutSeconds": str(seconds), **query}
        answer = self.client.get(self.path(plural), params=parameters)
        assert answer.status_code == 200, answer.text
        return [orjson.loads(line) for line in answer.text.splitlines()]


def emulator_plan(folder: Path, *flags: str) -> ServerPlan:
    """How to run our server with its files in `folder`; the same port and data at every start."""
    make_pki(folder)
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{TOKEN},{ADMIN.name},{ADMIN.name},"system:masters"\n')
    port = free_port()
    url = f"https://{LOOPBACK}:{port}"
    write_kubeconfig(
        folder / "kubeconfig",
        server=url,
        authority=(folder / "ca.crt").read_bytes(),
        user=ADMIN.name,
        token=TOKEN,
    )
    argv = [sys.executable, "-m", "kubelocal.apiserver", "--data", str(folder / "data")]
    argv += ["--port", str(port), "--token-file", str(tokens)]
    argv += ["--tls-cert", str(folder / "server.crt"), "--tls-key", str(folder / "server.key")]
    return ServerPlan(
        name="emulated kube-apiserver",
        argv=(*argv, *flags),
        cwd=folder,
        log_path=folder / "apiserver.log",
        url=url,
        port=port,
        probe=partial(http_ready, f"{url}/readyz", ca_file=folder / "ca.crt"),
    )


def client_for(url: str, ca_file: Path, token: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, verify=_trust(ca_file), headers=headers, timeout=PATIENCE_S)


@contextmanager
def start_emulation(folder: Path, *flags: str) -> Iterator[Cluster]:
    """Our API server, for as long as the block lasts."""
    plan = emulator_plan(folder, *flags)
    with (
        running(plan, die_with_parent=True),
        client_for(plan.url, folder / "ca.crt", TOKEN) as client,
    ):
        yield Cluster(kind="emulator", client=client, kubeconfig=folder / "kubeconfig")


@contextmanager
def real(folder: Path, assets: Assets) -> Iterator[Cluster]:
    """A real etcd and kube-apiserver, for as long as the block lasts."""
    with control_plane(folder, assets=assets) as plane:
        token = _token(plane.kubeconfig)
        with client_for(plane.url, plane.server.ca_file, token) as client:
            yield Cluster(
                kind="real",
                client=client,
                kubeconfig=plane.kubeconfig,
                minor=assets.version[1],
            )


@contextmanager
def emulated_or_real(request: pytest.FixtureRequest, folder: Path) -> Iterator[Cluster]:
    """The one that the fixture's parameter names, `emulator` or `real`."""
    if request.param == "emulator":
        server = start_emulation(folder)
    else:
        server = real(folder, request.getfixturevalue("kubernetes_assets"))
    with server as cluster:
        yield cluster


def fresh_namespace(cluster: Cluster) -> Cluster:
    """The same cluster, seen from a new namespace."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.ok(cluster.client.post("/api/v1/namespaces", json={"metadata": {"name": name}}))
    return Cluster(
        kind=cluster.kind,
        client=cluster.client,
        kubeconfig=cluster.kubeconfig,
        namespace=name,
        minor=cluster.minor,
    )


def _token(kubeconfig: Path) -> str:
    import yaml

    config = yaml.safe_load(kubeconfig.read_text())
    token: str = config["users"][0]["user"]["token"]
    return token


def _trust(ca_file: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(ca_file))
