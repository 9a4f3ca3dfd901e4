"""What the node-agent costs: Allocate over real gRPC, and the CPU and memory of doing nothing.

One agent process with 8 simulated cards, NATS and an emulated API server beside it, the settings of
production. 200 containers come one after the other, as the kubelet's do: grant over the bus, then
Allocate and PreStartContainer on one channel. The ratio is to a bare gRPC server in another process
that answers the same message to the same client in the same run. Then the agent is left alone with
its 200 containers: `idle` while their regions stay as they are, `busy` while every one changes
every second, `held` while each has a program with memory on its card, so that limits are checked of
all of them; what the stand-in driver itself takes of it (it looks into /proc for each process and
call, a real one does not) is measured apart. The CPU time of a call is that of all the agent's
threads while it was under way: on a busy machine it shows what the wall clock can't. Goals:
Allocate p99 10 ms, 1 % of a core, 90 MB; the stand-in driver's state file, which the agent maps and
a real driver has not, is no part of that. The agent starts with the variables of its image. Writes
bench/results/node_agent.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from hami_node_agent.adapters.nvml.driver import NvmlDriver
from hami_node_agent.usage.regions import layout as layout
from hamicommon.grants.grant import Grant, GrantedShare
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc
from kubelocal.kubelet.devices.types import AllocateAnswer, DeviceAllocation

from bench.filter.figures import cpu_s, fdatasync_ms, machine, percentile, resident_mb
from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import Control, container, grant, open_control
from tests.integration.node_agent.machine import (
    FAKEGPU,
    NODE,
    RESOURCE,
    AgentProcess,
    Kubelet,
    Machine,
    mounts_of,
)
from tests.native.machine import LIBVGPU
from tests.servers import embedded_servers
from tests.unit.node_agent.region_files import v1_file

RESULTS = Path(__file__).resolve().parent / "results" / "node_agent.json"
CARDS = tuple(f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(8))
SPLIT = 40
PREFIX = "HAMI_NODE_AGENT_"
PRODUCTION = {
    f"{PREFIX}HEARTBEAT_S": "10",
    f"{PREFIX}PROBE_INTERVAL_S": "5",
    f"{PREFIX}XID_QUIET_S": "300",
    f"{PREFIX}SAMPLE_INTERVAL_S": "5",
    f"{PREFIX}SNAPSHOT_INTERVAL_S": "15",
    f"{PREFIX}SWEEP_INTERVAL_S": "2",
    f"{PREFIX}DEVICE_SPLIT_COUNT": str(SPLIT),
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
GOALS = {
    "allocate_p99_ms": 10.0,
    "idle_core_percent": 1.0,
    "held_core_percent": 1.2,
    "resident_mb": 90.0,
}
SETTLE_S = 10.0
CHANGE_EVERY_S = 1.0
"""A container that computes touches its region about so often."""
POLL_S = 0.05


class Echo(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Answers one message to every Allocate."""

    def __init__(self, answer: bytes) -> None:
        self._answer = api.AllocateResponse.FromString(answer)

    async def Allocate(self, request: object, context: object) -> Any:  # noqa: N802 - gRPC's name
        """The message."""
        del request, context
        return self._answer


def driver_cpu_s(calls: int, pause_s: float) -> float:
    """CPU time of what is asked of the driver every five seconds, without the rest of the agent.

    With a pause between them, as the agent has: right after each other they find every cache warm
    and take a quarter less.
    """
    driver = NvmlDriver(sysfs_root=Path("/nowhere"), fallback_memory_mib=0)
    driver.start()
    cards = driver.cards()
    began = time.process_time()
    for _ in range(calls):
        time.sleep(pause_s)
        driver.processes()
        driver.samples()
        driver.probe()
    spent = time.process_time() - began
    assert cards
    driver.stop()
    return spent / calls


async def serve_echo(socket: str) -> None:
    """The bare server; the message comes on stdin."""
    server = grpc.aio.server()
    add: Any = deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server
    add(Echo(sys.stdin.buffer.read()), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


@asynccontextmanager
async def stub_of(socket: Path) -> AsyncIterator[Any]:
    """A client on one channel, as the kubelet keeps it."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        await channel.channel_ready()
        make: Any = deviceplugin_pb2_grpc.DevicePluginStub
        yield make(channel)


async def timed(call: Any, request: Any) -> tuple[float, Any]:
    """(milliseconds, answer)"""
    started = time.perf_counter()
    answer = await call(request, timeout=30)
    return (time.perf_counter() - started) * 1000, answer


def grant_of(number: int, uid: str) -> tuple[Grant, str]:
    """The grant of one pod, and the id that the kubelet takes for it."""
    card = CARDS[number % len(CARDS)]
    share = GrantedShare(uuid=card, vendor="NVIDIA", memory_mib=1024, core_percent=2)
    granted = grant(uid, container(share), token=number + 1)
    granted = granted.model_copy(update={"pod_name": f"pod-{number}"})
    return granted, f"{card}-{number // len(CARDS)}"


class Run:
    """The pods of one run."""

    def __init__(self, agent_pid: int, kubelet: Kubelet, control: Control, made: ApiPods) -> None:
        self._agent_pid = agent_pid
        self._kubelet = kubelet
        self._made = made
        self._control = control
        self.allocate_ms: list[float] = []
        self.prestart_ms: list[float] = []
        self.allocate_cpu_ms: list[float] = []
        self.prestart_cpu_ms: list[float] = []
        self.regions: list[Path] = []
        self.answer = b""
        self._answers: list[tuple[Grant, Any]] = []
        self._programs: list[subprocess.Popen[bytes]] = []

    async def bring(self, pods: int, stub: Any) -> None:
        """Pods one after the other."""
        for number in range(pods):
            await self._made.create(f"pod-{number}")
            granted, device = grant_of(number, self._made.uids[f"pod-{number}"])
            await self._control.announce(granted)
            await self._control.until_all_is_consumed()
            request = api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=[device])]
            )
            answer = await self._timed(
                self.allocate_ms, self.allocate_cpu_ms, stub.Allocate, request
            )
            self.answer = answer.SerializeToString()
            self._remember(granted, device, answer.container_responses[0])
            start = api.PreStartContainerRequest(devices_ids=[device])
            await self._timed(self.prestart_ms, self.prestart_cpu_ms, stub.PreStartContainer, start)

    async def _timed(
        self, spent: list[float], computed: list[float], call: Any, request: Any
    ) -> Any:
        """Whatever else the agent does at that time is in its CPU time too."""
        began = running_ms(self._agent_pid)
        spent_ms, answer = await timed(call, request)
        spent.append(spent_ms)
        computed.append(running_ms(self._agent_pid) - began)
        return answer

    def _remember(self, granted: Grant, device: str, answer: Any) -> None:
        uid = granted.pod_uid
        self._kubelet.pods[uid] = granted.pod_name
        self._kubelet.allocations[uid, "main"] = DeviceAllocation(
            pod_uid=uid,
            container="main",
            resource=RESOURCE,
            ids_by_numa={-1: (device,)},
            answer=AllocateAnswer(raw=answer.SerializeToString()),
        )
        self._kubelet.write_checkpoint()
        self._control.keep(granted, "allocated")
        name = Path(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
        self.regions.append(v1_file(mounts_of(answer)["/usr/local/vgpu"] / name))
        self._answers.append((granted, answer))

    def begin_programs(self, node: Machine, proc: Path) -> None:
        """A program in each container that holds memory and does nothing."""
        for (granted, answer), region in zip(self._answers, self.regions, strict=True):
            region.unlink()
            mounts = mounts_of(answer)
            environment = {
                "LD_LIBRARY_PATH": str(FAKEGPU),
                "LD_PRELOAD": f"{LIBVGPU}:{FAKEGPU / 'libpathmap.so'}",
                "HAMI_PATHMAP": ";".join(
                    f"{path}={mounts[path]}" for path in ("/etc/hami", "/usr/local/vgpu")
                ),
                "FAKEGPU_CONFIG": str(node.root / "fakegpu.json"),
                "FAKEGPU_VISIBLE_DEVICES": granted.containers[0].shares[0].uuid,
            }
            argv = [str(FAKEGPU / "vgpu-probe"), "--bytes", str(1 << 20), "--no-launch"]
            program = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
            self._programs.append(program)
            # What no kubelet has made here: the cgroup, by which a process is its pod's.
            folder = proc / str(program.pid)
            folder.mkdir()
            for name in ("stat", "status"):
                (folder / name).symlink_to(f"/proc/{program.pid}/{name}")
            (folder / "cgroup").write_text(f"0::/kubepods/pod{granted.pod_uid}/main\n")
        for program in self._programs:
            assert program.stdout is not None
            while b"running" not in (line := program.stdout.readline()):
                assert line, "the program ended"

    def end_programs(self) -> None:
        """Ends them."""
        for program in self._programs:
            program.kill()
            program.wait(timeout=30)
            assert program.stdout is not None
            program.stdout.close()


async def echoed_ms(folder: Path, answer: bytes, device_id: str, calls: int) -> list[float]:
    """The same calls to the bare server."""
    socket = folder / "echo.sock"
    command = [sys.executable, "-m", "bench.node_agent", "--echo", str(socket)]
    echo = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220 - nothing else runs
    assert echo.stdin is not None
    try:
        echo.stdin.write(answer)
        echo.stdin.close()
        while not socket.exists():  # noqa: ASYNC110 - it has no other sign
            await asyncio.sleep(POLL_S)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=[device_id])]
        )
        async with stub_of(socket) as stub:
            return [(await timed(stub.Allocate, request))[0] for _ in range(calls)]
    finally:
        echo.terminate()
        echo.wait(timeout=30)


def running_ms(pid: int) -> float:
    """CPU time of the threads that a process has, to the nanosecond."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += int((thread / "schedstat").read_text().split()[0])
    return found / 1e6


def mapped_mb(pid: int, name: str) -> float:
    """Resident pages of files with that name."""
    kib, counted = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            counted = line.endswith(f"/{name}")
        elif fields[0] == "Rss:" and counted:
            kib += int(fields[1])
    return kib * 1024 / 1e6


async def core_percent(pid: int, seconds: float, regions: list[Path]) -> float:
    """CPU of a process over some seconds, in percent of a core, while these regions change."""
    files = [os.open(region, os.O_RDWR) for region in regions]
    total_at = layout.V1.slots_at + layout.V1.memory_at + layout.MemoryV1.total_bytes.offset
    used, began = cpu_s(pid), time.monotonic()
    while time.monotonic() - began < seconds:
        stamp = int(time.time())
        for file in files:
            os.pwrite(file, struct.pack("<Q", stamp), total_at)
        await asyncio.sleep(CHANGE_EVERY_S)
    for file in files:
        os.close(file)
    return (cpu_s(pid) - used) / (time.monotonic() - began) * 100


async def driver_core_percent(node: Machine) -> float:
    """What the looks at the driver cost in percent of a core, at the rate of production."""
    command = [sys.executable, "-m", "bench.node_agent", "--driver"]
    looking = await asyncio.create_subprocess_exec(
        *command, env=os.environ | node.env(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await looking.communicate()
    return float(output) / float(PRODUCTION[f"{PREFIX}SAMPLE_INTERVAL_S"]) * 100


async def measure(folder: Path, nats_url: str, pods: int, seconds: float) -> dict[str, Any]:
    """One run."""
    async with AsyncExitStack() as stack:
        api_server = ApiServer(folder)
        await api_server.start()
        stack.callback(api_server.stop)
        client = await stack.enter_async_context(api_server.client())
        await client.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        node = Machine(
            root=folder,
            kubeconfig=api_server.kubeconfig,
            nats_url=nats_url,
            cards=CARDS,
            extra=PRODUCTION
            | {f"{PREFIX}PROC_ROOT": str(folder / "proc"), "PYTHONPATH": str(folder / "image")},
        )
        (folder / "proc").mkdir()
        # Tests need it and the agent's image has not: OpenTelemetry loads it where it is there.
        (folder / "image").mkdir()
        (folder / "image" / "psutil.py").write_text("raise ImportError('not in the image')\n")
        node.prepare()
        control = await stack.enter_async_context(open_control(nats_url))
        kubelet = Kubelet(node)
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        agent = AgentProcess(node)
        agent.start()
        stack.callback(agent.close)
        await agent.ready()
        run = Run(agent.pid, kubelet, control, ApiPods(client))
        async with stub_of(node.sockets / "nvidia-gpu.sock") as stub:
            await run.bring(pods, stub)
        bare = await echoed_ms(folder, run.answer, f"{CARDS[0]}-0", pods)
        await asyncio.sleep(SETTLE_S)
        idle = await core_percent(agent.pid, seconds, [])
        busy = await core_percent(agent.pid, seconds, run.regions)
        stack.callback(run.end_programs)
        run.begin_programs(node, folder / "proc")
        await asyncio.sleep(SETTLE_S)
        held = await core_percent(agent.pid, seconds, [])
        by_driver = await driver_core_percent(node)
        _, text = agent.get("/metrics")
        enforced = text.count('state="enforced"')
        assert enforced == pods, f"{enforced} of {pods} containers are enforced"
        return {
            "allocate_p50_ms": statistics.median(run.allocate_ms),
            "allocate_p99_ms": percentile(run.allocate_ms, 0.99),
            "allocate_cpu_p50_ms": statistics.median(run.allocate_cpu_ms),
            "prestart_cpu_p50_ms": statistics.median(run.prestart_cpu_ms),
            "bare_p50_ms": statistics.median(bare),
            "bare_p99_ms": percentile(bare, 0.99),
            "allocate_ratio_p50": statistics.median(run.allocate_ms) / statistics.median(bare),
            "prestart_p50_ms": statistics.median(run.prestart_ms),
            "prestart_p99_ms": percentile(run.prestart_ms, 0.99),
            "fdatasync_ms": fdatasync_ms(folder),
            "idle_core_percent": idle,
            "busy_core_percent": busy,
            "held_with_stand_in_core_percent": held,
            "held_core_percent": held - by_driver,
            "resident_mb": resident_mb(agent.pid) - mapped_mb(agent.pid, "fakegpu.state"),
            "load_1min": os.getloadavg()[0],
        }


def main() -> None:
    """Measures, prints the table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of idling, and of being busy")
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    parser.add_argument("--driver", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        print(driver_cpu_s(10, pause_s=2.0))
        return
    if arguments.echo:
        asyncio.run(serve_echo(arguments.echo))
        return
    where = machine()
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    # A Unix socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hami-bench-"))
    try:
        with embedded_servers() as servers, servers.nats() as url:
            found = asyncio.run(measure(folder, url, arguments.pods, arguments.seconds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {name: round(value, 2) for name, value in found.items()}
    for name, value in result.items():
        goal = f"  (goal {GOALS[name]:g})" if name in GOALS else ""
        print(f"{name:>20}  {value:10.2f}{goal}")
    RESULTS.parent.mkdir(exist_ok=True)
    result_of_run = {"machine": where, "cards": len(CARDS), "pods": arguments.pods, **result}
    RESULTS.write_text(json.dumps(result_of_run, indent=2) + "\n")


if __name__ == "__main__":
    main()
