"""A node, a scheduler's side of the bus and an API server for each test."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest
from hamicommon import events
from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import ensure_credentials

from tests.integration.node_agent.control import Control, open_control
from tests.integration.node_agent.machine import (
    FAKEGPU,
    FORKS,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
)
from tests.integration.node_agent.tenants import GRACE_S, Checks, Proc, Tenants
from tests.waiting import PATIENCE_S


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes, and pytest's own are longer."""
    made = Path(tempfile.mkdtemp(prefix="hami-agent-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def machine(folder: Path, nats_url: str) -> Machine:
    """A node with two cards; its API server is away."""
    if not (FAKEGPU / "libnvidia-ml.so.1").exists():
        pytest.fail("the stand-in driver is not built: make native")
    nobody = write_kubeconfig(
        folder / "kubeconfig", server="http://127.0.0.1:9", authority=b"", token="none"
    )
    machine = Machine(root=folder, kubeconfig=nobody, nats_url=nats_url)
    machine.prepare()
    return machine


@pytest.fixture
async def control(nats_url: str, machine: Machine) -> AsyncIterator[Control]:
    async with open_control(nats_url) as control:
        control.agent_state = machine.state
        yield control


@pytest.fixture(scope="session", autouse=True)
def end_of_forks() -> Iterator[None]:
    """Agents are forks of one process; it ends with the last case."""
    yield
    FORKS.close()


@pytest.fixture
async def kubelet(machine: Machine) -> AsyncIterator[Kubelet]:
    kubelet = Kubelet(machine)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def agent(
    machine: Machine, kubelet: Kubelet, control: Control
) -> AsyncIterator[AgentProcess]:
    """The agent, registered and with the bus."""
    with AgentProcess(machine) as agent:
        await agent.ready()
        yield agent


class ApiServer:
    """The emulated Kubernetes API, as a process that can be away."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._made = ensure_credentials(folder / "credentials", serving=("apiserver",))
        self._process: subprocess.Popen[bytes] | None = None
        self.kubeconfig = write_kubeconfig(
            folder / "admin.kubeconfig",
            server=f"https://127.0.0.1:{self._port}",
            authority=self._made.ca.read_bytes(),
            token=self._made.secret("kubernetes-admin"),
        )

    @property
    def authority(self) -> Path:
        """Certificate of the authority that its clients verify it with."""
        return self._made.ca

    def _spawn(self) -> None:
        with (self._folder / "apiserver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kubelocal.apiserver"),
                    *("--data", str(self._folder / "apiserver")),
                    *("--port", str(self._port)),
                    *("--tls-cert", str(self._made.certificate("apiserver"))),
                    *("--tls-key", str(self._made.key("apiserver"))),
                    *("--token-file", str(self._made.tokens)),
                ],
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        """Nothing where it runs already."""
        if self._process is not None and self._process.poll() is None:
            return
        self._spawn()
        async with self.client() as api, asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await api.text("/readyz")
                    return
                except (HamiError, OSError, aiohttp.ClientError):
                    await asyncio.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=PATIENCE_S)
            self._process = None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeApi]:
        async with open_kube_api(self.kubeconfig) as api:
            yield api


@pytest.fixture(scope="session")
def standing_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for all tests; it starts when a test first asks for it."""
    server = ApiServer(tmp_path_factory.mktemp("apiserver"))
    yield server
    server.stop()


@pytest.fixture
async def api_server(standing_api_server: ApiServer, machine: Machine) -> ApiServer:
    """A running API server with our Node and nothing else; the agent of this test uses it."""
    server = standing_api_server
    await server.start()
    machine.kubeconfig = server.kubeconfig
    async with server.client() as api:
        # Before a test and not after it: the agent of the one before may have written to the end.
        for path in ("/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events"):
            for item in (await api.get(path))["items"]:
                name = item["metadata"]["name"]
                with contextlib.suppress(NotFound):
                    await api.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
        with contextlib.suppress(NotFound):
            await api.delete(f"/api/v1/nodes/{NODE}")
        await api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
    return server


@dataclass
class ApiPods:
    """Pods of this node in the API server."""

    api: KubeApi
    uids: dict[str, str] = field(default_factory=dict)
    """By name."""

    async def create(self, *names: str, annotations: dict[str, str] | None = None) -> None:
        for name in names:
            pod = {
                "metadata": {"name": name, "annotations": annotations or {}},
                "spec": {
                    "nodeName": NODE,
                    "containers": [
                        {
                            "name": "main",
                            "image": "none",
                            "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        }
                    ],
                },
            }
            made = await self.api.create("/api/v1/namespaces/default/pods", pod)
            self.uids[name] = made["metadata"]["uid"]

    async def annotate(self, name: str, annotations: dict[str, str]) -> None:
        await self.api.patch(
            f"/api/v1/namespaces/default/pods/{name}", {"metadata": {"annotations": annotations}}
        )

    async def delete(self, name: str) -> None:
        await self.api.delete(f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})

    async def events(self, name: str) -> list[str]:
        answer = await self.api.get("/api/v1/namespaces/default/events")
        return [
            item["message"] for item in answer["items"] if item["involvedObject"]["name"] == name
        ]


@pytest.fixture
async def api_pods(api_server: ApiServer) -> AsyncIterator[ApiPods]:
    async with api_server.client() as api:
        yield ApiPods(api)


@pytest.fixture
def proc(machine: Machine, api_pods: ApiPods) -> Proc:
    made = Proc(machine.root / "proc")
    machine.extra |= {
        "HAMI_NODE_AGENT_PROC_ROOT": str(made.root),
        "HAMI_NODE_AGENT_ENFORCEMENT_GRACE_S": str(GRACE_S),
    }
    return made


@pytest.fixture
async def tenants(
    machine: Machine, proc: Proc, api_pods: ApiPods, kubelet: Kubelet, agent: AgentProcess
) -> AsyncIterator[Tenants]:
    made = Tenants(machine, proc, kubelet, api_pods)
    yield made
    made.close()


@pytest.fixture
async def checks(control: Control, nats_url: str) -> AsyncIterator[Checks]:
    heard = Checks()

    async def on_message(message: Any) -> None:
        heard.messages.append(events.LimitCheck.model_validate_json(message.data))

    client = await nats.connect(nats_url)
    await client.subscribe("hami.limits.v1.*", cb=on_message)
    yield heard
    await client.close()
