"""One GPU node for the tests: fakegpu's cards, the kubelet's sockets and state, the real agent.

The kubelet here admits when a test asks for it, in the order of the requests. It has no admission
loop and no container runtime (`kubelocal.kubelet` has those).
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import grpc
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc
from hamilocal.supervisor.ports import free_port
from kubelocal.kubelet.devices import checkpoint
from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceAllocation
from kubelocal.kubelet.sockets import PodDevices, serve_pod_resources, serve_registration

from tests.integration.node_agent.forked import ForkedAgent, Forks
from tests.unit.node_agent.library_file import a_library
from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[3]
FAKEGPU = REPOSITORY / "native/fakegpu/build"
RESOURCE = "nvidia.com/gpu"
NODE = "node-1.example"
CARDS = (
    "GPU-aaaaaaaa-0000-0000-0000-000000000001",
    "GPU-bbbbbbbb-0000-0000-0000-000000000002",
)


@dataclass
class Machine:
    """Files of the node."""

    root: Path
    kubeconfig: Path
    nats_url: str
    memory_mib: int = 81920
    cards: tuple[str, ...] = CARDS
    port: int = field(default_factory=free_port)
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def sockets(self) -> Path:
        return self.root / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        return self.sockets / checkpoint.FILE_NAME

    @property
    def limits(self) -> Path:
        return self.root / "state" / "limits"

    @property
    def hook(self) -> Path:
        return self.root / "hook" / "vgpu"

    @property
    def cgroups(self) -> Path:
        return self.root / "cgroup"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def state(self) -> Path:
        return self.root / "state" / "state.json"

    def prepare(self) -> None:
        for directory in (self.sockets, self.pod_resources.parent, self.cgroups):
            directory.mkdir(parents=True, exist_ok=True)
        (self.root / "host-proc").symlink_to("/proc")
        (self.root / "libvgpu.so").write_bytes(a_library())
        devices = [
            {
                "uuid": uuid,
                "name": "NVIDIA A100-SXM4-80GB",
                "memory_mib": self.memory_mib,
                "sm_count": 108,
                "max_threads_per_sm": 2048,
                "pci_bus_id": f"00000000:{7 + number:02x}:00.0",
                "numa": 0,
                "nvlinks": [number ^ 1] * 2,
                "major": 8,
                "minor": 0,
            }
            for number, uuid in enumerate(self.cards)
        ]
        described = {
            "state": str(self.root / "fakegpu.state"),
            "driver_version": "570.124.06",
            "cuda_version": 12080,
            "context_mib": 0,
            "devices": devices,
        }
        (self.root / "fakegpu.json").write_text(json.dumps(described))

    def env(self) -> dict[str, str]:
        prefix = "HAMI_NODE_AGENT_"
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(FAKEGPU),
            "FAKEGPU_CONFIG": str(self.root / "fakegpu.json"),
            "KUBECONFIG": str(self.kubeconfig),
            "HAMI_NATS_URL": self.nats_url,
            "HAMI_TELEMETRY_TRACES_FILE": str(self.root / "traces.jsonl"),
            f"{prefix}NODE_NAME": NODE,
            f"{prefix}KUBELET_DIR": str(self.root),
            f"{prefix}HOOK_PATH": str(self.root / "hook"),
            f"{prefix}STATE_DIR": str(self.root / "state"),
            f"{prefix}CDI_DIR": str(self.cdi),
            f"{prefix}LIBRARY_PATH": str(self.root / "libvgpu.so"),
            f"{prefix}PROC_ROOT": str(self.root / "host-proc"),
            f"{prefix}METRICS_BIND": f"127.0.0.1:{self.port}",
            f"{prefix}HEARTBEAT_S": "0.5",
            f"{prefix}XID_QUIET_S": "2",
            f"{prefix}SAMPLE_INTERVAL_S": "0.3",
            **self.extra,
        }

    def control(self, *arguments: str) -> None:
        """Change the state of a card of the stand-in driver."""
        subprocess.run(
            [FAKEGPU / "fakegpu-ctl", *arguments],
            env={"FAKEGPU_CONFIG": str(self.root / "fakegpu.json")},
            check=True,
            timeout=PATIENCE_S,
        )


COMMAND: tuple[str, ...] = (sys.executable, "-m", "hami_node_agent")
FORKED_WITH = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(FAKEGPU)}
FORKS = Forks(FORKED_WITH, REPOSITORY)


def loader_variables(env: dict[str, str]) -> dict[str, str]:
    """Variables that are read at program start, and so are the same for all forks."""
    return {name: value for name, value in env.items() if name.startswith(("LD_", "PYTHON"))}


class AgentProcess:
    """The real `hami-node-agent`, as a separate process."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._log = machine.root / "agent.log"
        self._process: subprocess.Popen[bytes] | ForkedAgent | None = None
        self.command = COMMAND

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=PATIENCE_S)

    def start(self) -> None:
        env = self._machine.env()
        if self.command == COMMAND and loader_variables(env) == loader_variables(FORKED_WITH):
            self._process = FORKS.start(env, cwd=self._machine.root, log=self._log)
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=env,
                stdout=log,
                stderr=log,
                cwd=self._machine.root,
            )

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        code = self._process.wait(timeout=PATIENCE_S)
        self._process = None
        return code

    def wait(self) -> int:
        """Wait for the agent's end; return its status."""
        assert self._process is not None
        return self._process.wait(timeout=PATIENCE_S)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Return (status, body); status 0 if nothing listens."""
        url = f"http://127.0.0.1:{self._machine.port}{path}"
        try:
            with urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()
        except (URLError, OSError):
            return 0, ""

    async def start_again(self) -> None:
        """Start, and wait until it is ready."""
        self.start()
        await self.ready()

    async def ready(self) -> None:
        async def status() -> int:
            return (await asyncio.to_thread(self.get, "/readyz"))[0]

        async with asyncio.timeout(PATIENCE_S):
            while await status() != 200:
                assert self._process is not None
                assert self._process.poll() is None, self.log
                await asyncio.sleep(0.05)


class Kubelet:
    """Sockets, ids and state of a kubelet that does what a test asks."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.registrations: list[str] = []
        self.while_registering: Callable[[], None] = lambda: None
        self.allocations: dict[tuple[str, str], DeviceAllocation] = {}
        self.pods: dict[str, str] = {}
        """uid -> name of the pods it has, all in namespace default."""
        self.has_checkpoint = True
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Start like a kubelet, which first removes all sockets in its directory."""
        for socket in self.machine.sockets.glob("*.sock"):
            socket.unlink()
        await self._stack.enter_async_context(
            serve_pod_resources(self.machine.pod_resources, self._pod_devices)
        )
        await self._stack.enter_async_context(
            serve_registration(
                self.machine.sockets / "kubelet.sock",
                self._register,
            )
        )

    def _register(self, _resource: str, endpoint: str) -> None:
        self.registrations.append(endpoint)
        self.while_registering()

    async def stop(self) -> None:
        await self._stack.aclose()
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def plugin(self) -> AsyncIterator[Any]:
        socket = self.machine.sockets / "nvidia-gpu.sock"
        # As a kubelet's new client: it would wait out the back-off of a connection that it shares
        # with an earlier call, and refuse until then though the agent has come back.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            # mypy follows the benchmarks to here.
            stub: Any = deviceplugin_pb2_grpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            yield stub

    async def allocate(self, pod: str, container: str, *ids: str) -> api.ContainerAllocateResponse:
        """Admit one container: Allocate, and the checkpoint after it."""
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        async with self.plugin() as plugin:
            answer: api.ContainerAllocateResponse = (
                await plugin.Allocate(request, timeout=PATIENCE_S)
            ).container_responses[0]
        self.pods.setdefault(pod, f"name-of-{pod}")
        self.allocations[pod, container] = DeviceAllocation(
            pod_uid=pod,
            container=container,
            resource=RESOURCE,
            ids_by_numa={-1: ids},
            answer=AllocateAnswer(raw=answer.SerializeToString()),
        )
        self.write_checkpoint()
        return answer

    def keep(
        self, pod: str, container: str, *ids: str, answer: api.ContainerAllocateResponse, name: str
    ) -> None:
        """A container that holds ids by the answer of an earlier device plugin."""
        self.pods[pod] = name
        self.allocations[pod, container] = DeviceAllocation(
            pod_uid=pod,
            container=container,
            resource=RESOURCE,
            ids_by_numa={-1: ids},
            answer=AllocateAnswer(raw=answer.SerializeToString()),
        )
        self.write_checkpoint()

    async def prefer(self, size: int, *available: str) -> list[list[str]]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available, allocation_size=size
                )
            ]
        )
        async with self.plugin() as plugin:
            answer = await plugin.GetPreferredAllocation(request, timeout=PATIENCE_S)
        return [list(item.deviceIDs) for item in answer.container_responses]

    async def prestart(self, *ids: str) -> None:
        async with self.plugin() as plugin:
            await plugin.PreStartContainer(
                api.PreStartContainerRequest(devices_ids=ids), timeout=PATIENCE_S
            )

    def forget(self, pod: str) -> None:
        """Remove the ended pod from the state."""
        del self.pods[pod]
        for key in [key for key in self.allocations if key[0] == pod]:
            del self.allocations[key]
        self.write_checkpoint()

    def write_checkpoint(self) -> None:
        self.machine.checkpoint.unlink(missing_ok=True)
        if self.has_checkpoint:
            content = checkpoint.encode(self.allocations.values(), {})
            self.machine.checkpoint.write_bytes(content)

    def _pod_devices(self) -> list[PodDevices]:
        return [
            PodDevices(
                name=name,
                namespace="default",
                containers=tuple(
                    (allocation.container, ((RESOURCE, tuple(allocation.ids)),))
                    for allocation in self.allocations.values()
                    if allocation.pod_uid == uid
                ),
            )
            for uid, name in self.pods.items()
        ]


def mounts_of(answer: api.ContainerAllocateResponse) -> dict[str, Path]:
    """Container path -> host path."""
    return {mount.container_path: Path(mount.host_path) for mount in answer.mounts}


def limits_of(answer: api.ContainerAllocateResponse) -> str:
    """Return the text at /etc/hami/limits in the container."""
    return (mounts_of(answer)["/etc/hami"] / "limits").read_text()
