"""Limits checked from outside: real programs on the stand-in driver, seen by the real agent.

What the host's /proc shows is real but for the cgroup, which names a pod: this test is no kubelet.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from hamicommon import events
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests import measured
from tests.integration.node_agent.conftest import ApiPods
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
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.native]

MIB = 1024 * 1024
GRANTED_MIB = 4096
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


@pytest.fixture
def proc(machine: Machine, api_pods: ApiPods) -> Proc:
    made = Proc(machine.root / "proc")
    machine.extra |= {
        "HAMI_NODE_AGENT_PROC_ROOT": str(made.root),
        "HAMI_NODE_AGENT_ENFORCEMENT_GRACE_S": str(GRACE_S),
    }
    return made


class Tenants:
    """Pods with a container each, and programs in them."""

    def __init__(self, machine: Machine, proc: Proc, kubelet: Kubelet, pods: ApiPods) -> None:
        self._machine = machine
        self._proc = proc
        self._kubelet = kubelet
        self._pods = pods
        self._answers: dict[str, api.ContainerAllocateResponse] = {}
        self._clients: list[Client] = []

    async def create(self, name: str) -> str:
        """A pod whose container runs; its uid."""
        await self._pods.create(name)
        status = {"containerStatuses": [{"name": "main", "containerID": f"x://{self._id(name)}"}]}
        await self._pods.api.patch(
            f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}
        )
        return self._pods.uids[name]

    async def granted(self, name: str, control: Control, device: int = 0) -> str:
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
        self, name: str, *, preload: bool = True, cards: str = CARDS[0], **env: str
    ) -> Client:
        """A program in the pod's container."""
        mapped = {} if name not in self._answers else mounts_of(self._answers[name])
        uid = self._pods.uids[name]
        client = Client(
            {
                "PATH": "/usr/bin:/bin",
                "LD_LIBRARY_PATH": str(FAKEGPU),
                "FAKEGPU_CONFIG": str(self._machine.root / "fakegpu.json"),
                "FAKEGPU_VISIBLE_DEVICES": cards,
                **(self._preloaded(mapped) if preload else {}),
                **env,
            }
        )
        self._clients.append(client)
        self._proc.put(client.pid, f"/kubepods/pod{uid}/{self._id(name)}")
        assert client.call("open_device", ordinal=0) == {"result": 0}
        return client

    def _preloaded(self, mapped: dict[str, Path]) -> dict[str, str]:
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


@pytest.fixture
async def tenants(
    machine: Machine, proc: Proc, api_pods: ApiPods, kubelet: Kubelet, agent: AgentProcess
) -> AsyncIterator[Tenants]:
    made = Tenants(machine, proc, kubelet, api_pods)
    yield made
    made.close()


class Checks:
    """The node's reports, as the scheduler hears them."""

    def __init__(self) -> None:
        self.messages: list[events.LimitCheck] = []

    def found(self, uid: str) -> events.LimitFinding | None:
        """What the last report has of a pod."""
        if not self.messages:
            return None
        return next((f for f in self.messages[-1].findings if f.pod_uid == uid), None)


@pytest.fixture
async def checks(control: Control, nats_url: str) -> AsyncIterator[Checks]:
    heard = Checks()

    async def on_message(message: Any) -> None:
        heard.messages.append(events.LimitCheck.model_validate_json(message.data))

    client = await nats.connect(nats_url)
    await client.subscribe("hami.limits.v1.*", cb=on_message)
    yield heard
    await client.close()


def states(agent: AgentProcess) -> dict[str, str]:
    """By pod, as /metrics shows them."""
    _, text = agent.get("/metrics")
    found = re.findall(r'^hami_vgpu_limit_state\{.*pod="([^"]*)".*state="(\w+)".*\} 1', text, re.M)
    return dict(found)


async def seen(agent: AgentProcess, name: str, state: str, what: str) -> float:
    """Waits until /metrics shows it; seconds."""
    began_s = time.monotonic()
    while (now := await asyncio.to_thread(states, agent)).get(name) != state:
        assert time.monotonic() - began_s < PATIENCE_S, f"{now}: {agent.log[-2000:]}"
        await asyncio.sleep(0.05)
    took_s = time.monotonic() - began_s
    measured.note(f"{what}: {state} after {took_s:.1f} s (grace {GRACE_S:g} s)")
    assert took_s < SEEN_WITHIN_S
    return took_s


async def test_who_keeps_to_his_grant_is_enforced(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    uid = await tenants.granted("honest", control)
    program = tenants.program("honest")
    assert program.alloc(GRANTED_MIB * MIB)[0] == 0
    assert program.alloc(MIB)[0] == 2

    await seen(agent, "honest", "enforced", "a full slice")
    await asyncio.sleep(5 * GRACE_S)
    assert states(agent) == {"honest": "enforced"}
    assert checks.found(uid) is None
    _, text = agent.get("/metrics")
    assert re.search(r"hami_vgpu_driver_memory_used_bytes\{.*\} 4\.294967296e\+09", text)


async def test_a_program_past_the_library_is_seen_and_then_what_it_holds(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    uid = await tenants.granted("past", control)
    honest = await tenants.granted("beside", control, device=1)
    beside = tenants.program("beside")
    assert beside.alloc(100 * MIB)[0] == 0
    program = tenants.program("past", preload=False)
    await seen(agent, "past", "bypassed", "a program without the library")
    assert program.alloc(20_480 * MIB)[0] == 0
    await seen(agent, "past", "exceeded", "20 GiB of a slice of 4 GiB")

    found = await eventually(lambda: _is(checks.found(uid), "exceeded"))
    assert (found.pod, found.namespace, found.container) == ("past", "default", "main")
    assert (found.held_mib, found.granted_mib, found.uuid) == (20_480, GRANTED_MIB, CARDS[0])
    assert found.violating
    assert checks.found(honest) is None
    assert states(agent)["beside"] == "enforced"


async def test_a_card_without_a_grant_is_seen(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    """NVIDIA_VISIBLE_DEVICES=all of a pod that asked for no card, and of one that asked for one."""
    nothing = await tenants.create("nothing")
    one = await tenants.granted("one", control)
    for name, card in (("nothing", CARDS[0]), ("one", CARDS[1])):
        program = tenants.program(name, preload=False, cards=card)
        assert program.alloc(1024 * MIB)[0] == 0
    await seen(agent, "nothing", "bypassed", "a pod without a grant")
    for uid, card in ((nothing, CARDS[0]), (one, CARDS[1])):
        found = await eventually(lambda uid=uid: checks.found(uid))
        assert (found.state, found.granted_mib, found.uuid) == ("bypassed", 0, card)
        assert "of which it has no grant" in found.reason


async def test_a_region_that_is_taken_away_multiplies_no_slice_unseen(
    tenants: Tenants, agent: AgentProcess, control: Control
) -> None:
    """`rm` between processes: each counts alone, and only the last one is in the region."""
    await tenants.granted("rm", control)
    for _ in range(3):
        program = tenants.program("rm")
        assert program.alloc(4000 * MIB)[0] == 0
        tenants.region("rm").unlink()
    await seen(agent, "rm", "exceeded", "a region removed between three processes")


async def test_a_region_that_is_scribbled_on_hides_no_memory(
    tenants: Tenants, agent: AgentProcess, control: Control
) -> None:
    await tenants.granted("scribbled", control)
    program = tenants.program("scribbled", preload=False)
    assert program.alloc(8192 * MIB)[0] == 0
    region = tenants.region("scribbled")
    region.write_bytes(b"rubbish!" * 1000)
    await seen(agent, "scribbled", "exceeded", "a region full of rubbish")


async def test_processes_of_nobody_are_counted_and_not_blamed(
    tenants: Tenants, proc: Proc, agent: AgentProcess, checks: Checks
) -> None:
    uid = await tenants.create("host")
    program = tenants.program("host", preload=False)
    proc.put(program.pid, "/system.slice/monitoring.service")
    assert program.alloc(300 * MIB)[0] == 0

    def counted() -> bool:
        _, text = agent.get("/metrics")
        return bool(
            re.search(r'hami_node_agent_card_process_memory_bytes\{.*owner="host".*\} 3\.14', text)
        )

    await eventually(counted)
    await asyncio.sleep(3 * GRACE_S)
    assert checks.found(uid) is None


async def test_the_agents_restart_loses_nobody_and_blames_nobody(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    await tenants.granted("honest", control)
    cheat = await tenants.granted("cheat", control, device=1)
    program = tenants.program("honest")
    assert program.alloc(1000 * MIB)[0] == 0
    assert tenants.program("cheat", preload=False).alloc(9000 * MIB)[0] == 0
    await seen(agent, "cheat", "exceeded", "before a restart")
    await eventually(lambda: _is(checks.found(cheat), "exceeded"))

    await asyncio.to_thread(agent.stop)
    before = len(checks.messages)
    agent.start()
    await agent.ready()
    await seen(agent, "cheat", "exceeded", "after a restart of the agent")
    await eventually(lambda: len(checks.messages) > before and checks.found(cheat))
    after = checks.messages[before:]
    assert not any(check.settled for check in after if not check.findings)
    assert {f.pod for check in after for f in check.findings} == {"cheat"}


def _is(found: events.LimitFinding | None, state: str) -> events.LimitFinding | None:
    return found if found is not None and found.state == state else None
