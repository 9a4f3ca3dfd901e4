"""Mode `mps`: the daemon is started, watched and left running; clients get their share."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject

from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
    mounts_of,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native

A_0 = f"{CARDS[0]}-0"
STAND_IN = Path(__file__).with_name("mps_stand_in.py")


class Daemon:
    """NVIDIA's command, as far as a machine without a card can have it."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "mps"
        self.command = root / "nvidia-cuda-mps-control"
        self.install()

    def install(self) -> None:
        self.command.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        self.command.chmod(0o755)

    def send(self, command: str) -> str:
        """The reply; empty without a daemon."""
        done = subprocess.run(
            [self.command],
            env={"CUDA_MPS_PIPE_DIRECTORY": str(self.dir / "pipe")},
            input=command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    @property
    def pid(self) -> int:
        """0 while it is away."""
        return int(self.send("pid") or 0)


@pytest.fixture
def daemon(machine: Machine) -> Iterator[Daemon]:
    daemon = Daemon(machine.root)
    machine.extra["HAMI_NODE_AGENT_OPERATING_MODE"] = "mps"
    machine.extra["PATH"] = f"{daemon.command.parent}:{os.environ['PATH']}"
    machine.extra["HAMI_NODE_AGENT_MPS_DIR"] = str(daemon.dir)
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "0"
    yield daemon
    daemon.install()
    daemon.send("quit")


async def test_a_client_learns_where_the_daemon_is_and_what_its_share_is(
    daemon: Daemon, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a", container(share(0, 4096, 30), share(1, 8192, 50))))

    answer = await kubelet.allocate("a", "main", A_0, f"{CARDS[1]}-0")

    assert {k: v for k, v in answer.envs.items() if k.startswith("CUDA_MPS")} == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M,1=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert mounts_of(answer)["/tmp/nvidia-mps"] == daemon.dir / "pipe"
    # Threads are MPS's business: time is not cut a second time.
    assert "policy disable" in limits_of(answer)
    assert f"device {CARDS[0]} memory_bytes {4096 << 20} " in limits_of(answer)


async def test_a_daemon_that_died_is_started_again(daemon: Daemon, agent: AgentProcess) -> None:
    first = daemon.pid
    assert first

    os.kill(first, signal.SIGKILL)

    assert await eventually(lambda: daemon.pid) != first


async def test_the_daemon_outlives_the_agent_and_is_taken_as_it_is(
    daemon: Daemon, agent: AgentProcess
) -> None:
    first = daemon.pid

    assert agent.stop(signal.SIGTERM) == 0
    assert daemon.pid == first
    await agent.start_again()

    assert daemon.pid == first


async def test_while_the_daemon_is_away_no_pod_is_bound_here(
    daemon: Daemon, agent: AgentProcess, control: Control
) -> None:
    async def reason() -> str:
        asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
        return Readiness.model_validate_json(await control.bus.request(*asked)).reason

    assert "MPS" not in await reason()
    daemon.send("quit")
    daemon.command.write_text("#!/bin/sh\necho no card is there; exit 3\n")

    await eventually(lambda: "MPS control daemon is unavailable" in agent.get("/readyz")[1])
    assert "exit status 3: no card is there" in await reason()
    daemon.install()
    await agent.ready()
