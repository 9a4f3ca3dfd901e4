"""Pods with programs in them, as the agent sees them from outside.

What the host's /proc shows is real but for the cgroup, which names a pod: this is no kubelet.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hamicommon import events
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests import measured
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import (
    CARDS,
    FAKEGPU,
    AgentProcess,
    Kubelet,
    Machine,
    mounts_of,
)
from tests.native.machine import LIBVGPU, Client
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.integration.node_agent.conftest import ApiPods

GRACE_S = 1.0
SEEN_WITHIN_S = 30.0


class Proc:
    """The host's /proc, in which processes are of pods."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def put(self, pid: int, cgroup: str) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        for name in ("stat", "status"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(f"/proc/{pid}/{name}")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")


class Tenants:
    """Pods with a container each, and programs in them."""

    def __init__(self, machine: Machine, proc: Proc, kubelet: Kubelet, pods: ApiPods) -> None:
        self._machine = machine
        self._proc = proc
        self._kubelet = kubelet
        self._pods = pods
        self._answers: dict[str, api.ContainerAllocateResponse] = {}
        self._clients: list[Client] = []
        self._others: list[subprocess.Popen[str]] = []

    async def create(self, name: str) -> str:
        """A pod whose container runs; its uid."""
        await self._pods.create(name)
        status = {"containerStatuses": [{"name": "main", "containerID": f"x://{self._id(name)}"}]}
        await self._pods.api.patch(
            f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}
        )
        return self._pods.uids[name]

    async def create_with_slice(self, name: str, control: Control, device: int = 0) -> str:
        """The same, with a slice of the first card."""
        uid = await self.create(name)
        await control.announce(grant(uid))
        answer = await self._kubelet.allocate(uid, "main", f"{CARDS[0]}-{device}")
        await self._kubelet.prestart(f"{CARDS[0]}-{device}")
        self._answers[name] = answer
        return uid

    def _id(self, name: str) -> str:
        return name.encode().hex().rjust(64, "0")

    def program(
        self,
        name: str,
        *,
        preload: bool = True,
        cards: str = CARDS[0],
        cgroup: str = "",
        **env: str,
    ) -> Client:
        """A program in the pod's container, or else in the `cgroup`."""
        client = Client(self._env(name, preload, cards) | env)
        self._clients.append(client)
        # Before the driver lists it: whose a process is is read once.
        if cgroup:
            self._proc.put(client.pid, cgroup)
        else:
            self._of(name, client.pid)
        assert client.call("open_device", ordinal=0) == {"result": 0}
        return client

    def run(self, name: str, *command: str | Path, **env: str) -> subprocess.Popen[str]:
        """Another program there, which reads lines and answers with lines."""
        made = subprocess.Popen(
            command,
            env=self._env(name, True, CARDS[0]) | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._others.append(made)
        self._of(name, made.pid)
        return made

    def _of(self, name: str, pid: int) -> None:
        self._proc.put(pid, f"/kubepods/pod{self._pods.uids[name]}/{self._id(name)}")

    def _env(self, name: str, preload: bool, cards: str) -> dict[str, str]:
        mapped = {} if name not in self._answers else mounts_of(self._answers[name])
        return {
            "PATH": "/usr/bin:/bin",
            "LD_LIBRARY_PATH": str(FAKEGPU),
            "FAKEGPU_CONFIG": str(self._machine.root / "fakegpu.json"),
            "FAKEGPU_VISIBLE_DEVICES": cards,
            **(self._preload_env(mapped) if preload else {}),
        }

    def _preload_env(self, mapped: dict[str, Path]) -> dict[str, str]:
        table = ";".join(f"{path}={mapped[path]}" for path in ("/etc/hami", "/usr/local/vgpu"))
        return {
            "HAMI_PATHMAP": table,
            "LD_PRELOAD": f"{LIBVGPU}:{FAKEGPU / 'libpathmap.so'}",
        }

    def region(self, name: str) -> Path:
        answer = self._answers[name]
        inside = Path(answer.envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).name
        return mounts_of(answer)["/usr/local/vgpu"] / inside

    def close(self) -> None:
        for client in self._clients:
            client.end()
        for program in self._others:
            program.kill()
            program.communicate(timeout=PATIENCE_S)


class Checks:
    """Limit checks that the node's agent publishes."""

    def __init__(self) -> None:
        self.messages: list[events.LimitCheck] = []

    def finding_of(self, uid: str) -> events.LimitFinding | None:
        """Return the last report's finding on a pod."""
        if not self.messages:
            return None
        return next((f for f in self.messages[-1].findings if f.pod_uid == uid), None)


def states(agent: AgentProcess) -> dict[str, str]:
    """By pod, as /metrics shows them."""
    _, text = agent.get("/metrics")
    found = re.findall(r'^hami_vgpu_limit_state\{.*pod="([^"]*)".*state="(\w+)".*\} 1', text, re.M)
    return dict(found)


async def until_seen(agent: AgentProcess, name: str, state: str, what: str) -> float:
    """Waits until /metrics shows it; seconds."""
    return (await all_seen(agent, {name: time.monotonic()}, state, {name: what}))[name]


async def all_seen(
    agent: AgentProcess,
    began_s: Mapping[str, float],
    state: str,
    what: Mapping[str, str],
    *,
    grace_s: float = GRACE_S,
) -> dict[str, float]:
    """Waits until /metrics shows it of all pods; seconds of each since its own beginning."""
    took_s: dict[str, float] = {}
    while missing := began_s.keys() - took_s.keys():
        now = await asyncio.to_thread(states, agent)
        at_s = time.monotonic()
        took_s |= {pod: at_s - began_s[pod] for pod in missing if now.get(pod) == state}
        late = at_s - max(began_s.values()) > PATIENCE_S
        assert not late, f"{now}: {agent.log[-2000:]}"
        await asyncio.sleep(0.05)
    for pod, seconds in took_s.items():
        measured.note(f"{what[pod]}: {state} after {seconds:.1f} s (grace {grace_s:g} s)")
    assert max(took_s.values()) < SEEN_WITHIN_S
    return took_s
