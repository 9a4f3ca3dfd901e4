"""Faults of node-0: its cards, its disk, its containers, its plugin's socket."""

import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hami_node_agent.adapters.kubelet.state import read_checkpoint
from hamicommon.k8s.types import Json
from hamicommon.kubelet_api._generated import deviceplugin_pb2, deviceplugin_pb2_grpc
from hamilocal.system.layout import project

from tests.e2e.system import System, wait
from tests.faults.processes import programs_of, serving_pid
from tests.faults.stage import is_running
from tests.waiting import PATIENCE_S

NODE = "node-0"
KUBELET = f"kubelet-{NODE}"
AGENT = f"node-agent-{NODE}"


def home(system: System) -> Path:
    """Everything of the node."""
    return system.folder / "nodes" / NODE


def statuses(pod: Json) -> list[dict[str, int]]:
    """Return the statuses of the pod's app containers."""
    return list(pod["status"]["containerStatuses"])


def ids_in_checkpoint(system: System) -> list[str]:
    """The ids of the pods that live; entries of ended pods stay there for a while."""
    alive = {pod["metadata"]["uid"] for pod in system.pods()}
    folder = home(system) / "kubelet" / "device-plugins"
    content = (folder / "kubelet_internal_checkpoint").read_bytes()
    holdings = read_checkpoint(content, "nvidia.com/gpu")
    return sorted(i for holding in holdings if holding.pod_uid in alive for i in holding.device_ids)


def allocate(system: System, ids: list[str]) -> deviceplugin_pb2.AllocateResponse:
    """Call the plugin as the kubelet does. Raises: grpc.RpcError."""
    socket = home(system) / "kubelet" / "device-plugins" / "nvidia-gpu.sock"
    request = deviceplugin_pb2.AllocateRequest(
        container_requests=[deviceplugin_pb2.ContainerAllocateRequest(devices_ids=ids)]
    )
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
        answer: deviceplugin_pb2.AllocateResponse = stub.Allocate(request, timeout=PATIENCE_S)
        return answer


def restart_container(system: System, name: str) -> None:
    """Kill the program of a pod's container and wait until it runs again."""
    pod = system.pod(name)
    assert pod is not None
    before = statuses(pod)[0]["restartCount"]
    for pid in programs_of(pod):
        os.kill(pid, signal.SIGKILL)
    wait(
        lambda: (
            (found := system.pod(name))
            and is_running(found)
            and statuses(found)[0]["restartCount"] > before
        ),
        f"{name} to run once more",
    )


def fakegpu(system: System, *arguments: str) -> None:
    """Make a card of the node misbehave (`fakegpu-ctl`)."""
    subprocess.run(
        [project().fakegpu / "fakegpu-ctl", *arguments],
        env={"FAKEGPU_CONFIG": str(home(system) / "fakegpu.json")},
        check=True,
        capture_output=True,
    )


@contextmanager
def no_room(system: System) -> Iterator[None]:
    """The agent's folder is on a full tmpfs; without the right to mount one, no file may grow."""
    folder = home(system) / "agent"
    copy = folder.with_name("agent.kept")
    shutil.copytree(folder, copy)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=755", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        with _no_file_grows(serving_pid(system, AGENT)):
            yield
        return
    try:
        shutil.copytree(copy, folder, dirs_exist_ok=True)
        filler = folder / "filler"
        with pytest.raises(OSError, match="No space"):
            _fill(filler)
        yield
        filler.unlink()
        kept = copy.with_name("agent.after")
        shutil.copytree(folder, kept)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    shutil.rmtree(folder)
    kept.rename(folder)


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as written:
        while True:
            written.write(bytes(4096))


@contextmanager
def _no_file_grows(pid: int) -> Iterator[None]:
    """Every write of the process to a file fails (EFBIG), as on a full disk."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
