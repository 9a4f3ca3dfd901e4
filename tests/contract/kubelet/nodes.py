"""A device plugin over gRPC, an API server, and a kubelet process, for the contract tests."""

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json
from hamicommon.kubelet_api._generated import (
    deviceplugin_pb2,
    deviceplugin_pb2_grpc,
    podresources_pb2,
    podresources_pb2_grpc,
)
from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from kubelocal.kubelet.containers.runtime import parse_pids

from tests.control_plane import make_pki
from tests.processes import http_ready
from tests.waiting import PATIENCE_S, eventually

RESOURCE = "nvidia.com/gpu"
_messages: Any = deviceplugin_pb2
_servicer: Any = deviceplugin_pb2_grpc.DevicePluginServicer
_pod_resources: Any = podresources_pb2


def emulator_plan(folder: Path) -> tuple[ServerPlan, Path]:
    """The emulated API server in `folder`, and its administrator's kubeconfig."""
    if importlib.util.find_spec("kubelocal.apiserver") is None:
        pytest.skip("kubelocal.apiserver, the emulated API server, is not installed")
    make_pki(folder)
    port = free_port()
    url = f"https://{LOOPBACK}:{port}"
    (folder / "tokens.csv").write_text('token,admin,admin,"system:masters"\n')
    kubeconfig = write_kubeconfig(
        folder / "kubeconfig",
        server=url,
        authority=(folder / "ca.crt").read_bytes(),
        token="token",
    )
    plan = ServerPlan(
        name="apiserver",
        argv=(
            *(sys.executable, "-m", "kubelocal.apiserver"),
            *("--data", str(folder / "data"), "--port", str(port)),
            *("--tls-cert", str(folder / "server.crt"), "--tls-key", str(folder / "server.key")),
            *("--token-file", str(folder / "tokens.csv")),
        ),
        cwd=folder,
        log_path=folder / "apiserver.log",
        url=url,
        port=port,
        probe=partial(http_ready, f"{url}/readyz", ca_file=folder / "ca.crt"),
    )
    return plan, kubeconfig


class Plugin(_servicer):
    """A device plugin that writes down its calls; `refuse` holds the calls that fail.

    `during` is called within Allocate and PreStartContainer, with the call's name.
    """

    def __init__(self, folder: Path, *, devices: int = 10, options: Any = None) -> None:
        self.folder = folder
        self.ids = [
            f"GPU-{n // 10:08d}-0000-0000-0000-000000000000-{n % 10}" for n in range(devices)
        ]
        self.chosen = options or _messages.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=True
        )
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.refuse: set[str] = set()
        self.during: Callable[[str], Awaitable[None]] | None = None
        self.busy = 0
        self.overlapped = False
        self._server: grpc.aio.Server | None = None

    def names(self) -> list[str]:
        """The calls in order."""
        return [name for name, _ in self.calls]

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return self.chosen

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield _messages.ListAndWatchResponse(
            devices=[_messages.Device(ID=i, health="Healthy") for i in self.ids]
        )
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        wanted = request.container_requests[0]
        await self._record_call("preferred", wanted.must_include_deviceIDs, context)
        return _messages.PreferredAllocationResponse()

    async def Allocate(self, request: Any, context: Any) -> Any:
        self.overlapped |= self.busy > 0
        self.busy += 1
        ids = request.container_requests[0].devices_ids
        await self._record_call("allocate", ids, context)
        self.busy -= 1
        limits = self.folder / f"limits-{len(self.calls)}"
        limits.mkdir(parents=True)
        (limits / "limits").write_text(",".join(sorted(ids)))
        mount = _messages.Mount(container_path="/etc/hami", host_path=str(limits), read_only=True)
        answer = _messages.ContainerAllocateResponse(
            envs={"NVIDIA_VISIBLE_DEVICES": ids[0]}, mounts=[mount]
        )
        return _messages.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request: Any, context: Any) -> Any:
        await self._record_call("pre_start", request.devices_ids, context)
        return _messages.PreStartContainerResponse()

    async def _record_call(self, name: str, ids: Any, context: Any) -> None:
        self.calls.append((name, tuple(sorted(ids))))
        if name in self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{name} refused")
        if self.during is not None:
            await self.during(name)

    async def register(self, directory: Path, *, version: str = "v1beta1") -> None:
        """Serve in the kubelet's directory and register there."""
        await self.stop()
        self._server = grpc.aio.server()
        add: Any = deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server
        add(self, self._server)
        self._server.add_insecure_port(f"unix:{directory / 'nvidia-gpu.sock'}")
        await self._server.start()
        async with grpc.aio.insecure_channel(f"unix:{directory / 'kubelet.sock'}") as channel:
            stub: Any = deviceplugin_pb2_grpc.RegistrationStub
            request = _messages.RegisterRequest(
                version=version, endpoint="nvidia-gpu.sock", resource_name=RESOURCE
            )
            await stub(channel).Register(request, timeout=PATIENCE_S, wait_for_ready=True)

    async def stop(self) -> None:
        """End the stream."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


class Node:
    """One kubelet process and what tests ask of it."""

    def __init__(self, name: str, root: Path, kubeconfig: Path, api: KubeApi) -> None:
        self.name = name
        self.root = root
        self.api = api
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def device_plugins(self) -> Path:
        """Folder in which plugins register."""
        return self.root / "device-plugins"

    async def start(self) -> None:
        """Start the kubelet and wait until its Node is ready and its sockets are served."""
        with (self.root / "kubelet.log").open("ab") as log:
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                (
                    *("setpriv", "--pdeathsig", "SIGTERM", "--"),
                    *(sys.executable, "-m", "kubelocal.kubelet", "--node", self.name),
                    *("--kubeconfig", str(self._kubeconfig), "--root", str(self.root)),
                    *("--backoff-initial-s", "0.2", "--sync-retry-s", "0.2"),
                    "--stop-containers-on-exit",
                ),
                stdout=log,
                stderr=log,
            )
        await eventually(self._serving)

    async def _serving(self) -> bool:
        try:
            node = await self.object()
        except NotFound:
            return False
        return bool(node.get("status", {}).get("capacity")) and await self.pods_listed() is not None

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        (self.device_plugins / "kubelet.sock").unlink()

    async def stop(self) -> None:
        """SIGTERM; its containers end too."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(self._process.wait, PATIENCE_S)

    async def object(self) -> Json:
        """The Node."""
        return await self.api.get(f"/api/v1/nodes/{self.name}")

    async def devices(self) -> tuple[str, str]:
        """Capacity and allocatable of the plugin's resource."""
        status = (await self.object())["status"]
        return status["capacity"].get(RESOURCE, ""), status["allocatable"].get(RESOURCE, "")

    async def is_deserted(self) -> bool:
        """Return whether the node has noticed that its plugin is gone."""
        return (await self.devices())[1] == "0"

    async def run(self, name: str, *containers: Json, **spec: Any) -> Json:
        """Make a pod that is bound to this node."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{self.name}"},
            "spec": {
                "nodeName": self.name,
                "terminationGracePeriodSeconds": 2,
                "containers": list(containers),
                **spec,
            },
        }
        return await self.api.create("/api/v1/namespaces/default/pods", body)

    async def pod(self, name: str) -> Json:
        """The pod as the API server has it."""
        return await self.api.get(f"/api/v1/namespaces/default/pods/{name}-{self.name}")

    async def delete(self, name: str) -> None:
        """Ask for the pod's deletion."""
        await self.api.delete(f"/api/v1/namespaces/default/pods/{name}-{self.name}")

    async def clear(self) -> None:
        """Delete all pods of the node and wait until they are gone."""
        path, query = "/api/v1/pods", {"fieldSelector": f"spec.nodeName={self.name}"}
        for pod in (await self.api.get(path, **query))["items"]:
            name = pod["metadata"]["name"]
            with suppress(NotFound):
                await self.api.delete(f"/api/v1/namespaces/default/pods/{name}")

        async def empty() -> bool:
            return not (await self.api.get(path, **query))["items"]

        await eventually(empty)

    async def phase(self, name: str) -> str:
        """The pod's phase."""
        return str((await self.pod(name)).get("status", {}).get("phase"))

    async def pods_listed(self) -> dict[str, dict[str, tuple[str, ...]]] | None:
        """Return device ids by pod and container (PodResources); None without an answer."""
        socket = self.root / "pod-resources" / "kubelet.sock"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            stub: Any = podresources_pb2_grpc.PodResourcesListerStub
            try:
                answer = await stub(channel).List(
                    _pod_resources.ListPodResourcesRequest(), timeout=5
                )
            except grpc.aio.AioRpcError:
                return None
        return {
            pod.name: {
                container.name: tuple(i for d in container.devices for i in d.device_ids)
                for container in pod.containers
            }
            for pod in answer.pod_resources
        }

    def host_pid(self, pod: Json, container: str = "main") -> int:
        """The pid of a container's program on the host; in there it is another."""
        folder = self.root / "pods" / pod["metadata"]["uid"] / "containers" / container
        return parse_pids((folder / "0.pid").read_text()).container

    def log(self, pod: Json, container: str = "main") -> str:
        """Return the output of a container."""
        return (self.root / "pods" / pod["metadata"]["uid"] / f"{container}.log").read_text()


@asynccontextmanager
async def open_node(name: str, root: Path, kubeconfig: Path, api: KubeApi) -> AsyncIterator[Node]:
    """A running kubelet; its containers end with it."""
    node = Node(name, root, kubeconfig, api)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def container(name: str = "main", script: str = "exec sleep 1000", *, gpus: int = 0) -> Json:
    """A container that runs a shell script."""
    limits = {"limits": {RESOURCE: str(gpus)}} if gpus else {}
    return {"name": name, "image": "none", "command": ["sh", "-c", script], "resources": limits}


def alive(pid: int) -> bool:
    """Return whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
