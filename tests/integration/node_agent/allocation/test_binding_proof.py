"""BINDING=auto: late if the container runtime itself proves CDI support, otherwise lock."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hami_node_agent.adapters.kubelet.container_runtime import ContainerRuntime
from hami_node_agent.allocation.binding_way import RuntimeReport
from hamicommon.errors import Unavailable
from hamicommon.kubelet_api._generated import criruntime_pb2 as cri
from hamicommon.kubelet_api._generated import criruntime_pb2_grpc

from tests.integration.node_agent.conftest import ApiServer
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import CARDS, NODE, AgentProcess, Kubelet, Machine

pytestmark = pytest.mark.native

A_0 = f"{CARDS[0]}-0"


class Runtime(criruntime_pb2_grpc.RuntimeServiceServicer):
    """Answers as containerd does, with a configuration that a test changes."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    async def Version(self, request: object, context: object) -> cri.VersionResponse:
        del request, context
        return cri.VersionResponse(
            version="0.1.0",
            runtime_name="containerd",
            runtime_version="v1.7.24",
            runtime_api_version="v1",
        )

    async def Status(self, request: cri.StatusRequest, context: object) -> cri.StatusResponse:
        del context
        info = {"config": json.dumps(self.config), "golang": '"go1.22"'}
        return cri.StatusResponse(info=info if request.verbose else {})


@asynccontextmanager
async def serving(socket: Path, runtime: Runtime) -> AsyncIterator[None]:
    server = grpc.aio.server()
    add: Any = criruntime_pb2_grpc.add_RuntimeServiceServicer_to_server
    add(runtime, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@pytest.fixture
async def runtime(machine: Machine, api_server: ApiServer) -> AsyncIterator[Runtime]:
    """A runtime that honours CDI, on a node whose kubelet hands CDI names on."""
    socket = machine.root / "cri.sock"
    machine.extra |= {
        "HAMI_NODE_AGENT_BINDING": "auto",
        "HAMI_NODE_AGENT_CRI_SOCKET": str(socket),
        "HAMI_NODE_AGENT_DRAIN_S": "0",
    }
    reported = {
        "kubeletVersion": "v1.31.2",
        "containerRuntimeVersion": "containerd://1.7.24",
    }
    async with api_server.client() as api:
        await api.patch(f"/api/v1/nodes/{NODE}/status", {"status": {"nodeInfo": reported}})
    made = Runtime({"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", str(machine.cdi)]})
    async with serving(socket, made):
        yield made


def binding(agent: AgentProcess) -> str:
    [line] = [
        line
        for line in agent.get("/metrics")[1].splitlines()
        if line.startswith("hami_node_agent_binding{")
    ]
    return line


async def test_a_runtime_that_proves_cdi_binds_late_and_one_without_keeps_such_containers_waiting(
    runtime: Runtime, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    assert 'way="late"' in await asyncio.to_thread(binding, agent)
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    assert [device.name.partition("=")[0] for device in answer.cdi_devices] == ["hami.io/slice"]
    await kubelet.prestart(A_0)

    runtime.config["enableCDI"] = False
    await asyncio.to_thread(agent.stop)
    await agent.start_again()

    shown = await asyncio.to_thread(binding, agent)
    assert 'way="lock"' in shown
    assert "enable_cdi is false in its configuration" in shown
    # Such a runtime would start it without its limits, unnoticed.
    with pytest.raises(grpc.aio.AioRpcError, match=r"comes by CDI, and .*enable_cdi is false"):
        await kubelet.prestart(A_0)


async def test_a_container_that_was_bound_late_starts_as_it_was_when_late_binding_is_switched_off(
    runtime: Runtime, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)
    [file] = machine.cdi.glob("*.json")

    machine.extra["HAMI_NODE_AGENT_BINDING"] = "lock"
    await asyncio.to_thread(agent.stop)
    file.unlink()  # as a reboot does
    await agent.start_again()
    await kubelet.prestart(A_0)

    assert file.exists()


async def test_what_a_runtime_reports_is_read_as_it_is(tmp_path: Path) -> None:
    socket = tmp_path / "cri.sock"
    with pytest.raises(Unavailable, match="no such socket"):
        await ContainerRuntime(socket).report()

    runtime = Runtime({"enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]})
    async with serving(socket, runtime):
        assert await ContainerRuntime(socket).report() == RuntimeReport(
            name="containerd", version="v1.7.24", cdi_enabled=True, cdi_dirs=("/etc/cdi",)
        )
        runtime.config = {"snapshotter": "overlayfs"}  # containerd 1.6
        assert await ContainerRuntime(socket).report() == RuntimeReport(
            name="containerd", version="v1.7.24"
        )
