"""MIG instances that are there, as resources of their own, over the stand-in driver's NVML."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests.contract.kubelet.plugin_kubelet import PluginKubelet
from tests.integration.node_agent.control import Control
from tests.integration.node_agent.machine import CARDS, AgentProcess, Machine
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native
MIG_A, MIG_B = (
    "MIG-aaaaaaaa-0000-0000-0000-000000000001",
    "MIG-bbbbbbbb-0000-0000-0000-000000000002",
)


def instance(uuid: str, gpu_slices: int, memory_mib: int, gpu_instance: int) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "gpu_slices": gpu_slices,
        "memory_mib": memory_mib,
        "gpu_instance": gpu_instance,
    }


def cut(machine: Machine, *cards: list[dict[str, Any]] | None) -> None:
    """Puts cards into MIG mode, with these instances."""
    file = machine.root / "fakegpu.json"
    described = json.loads(file.read_text())
    for card, instances in zip(described["devices"], cards, strict=True):
        if instances is not None:
            card["mig"] = instances
    file.write_text(json.dumps(described))


@asynccontextmanager
async def agent_with(machine: Machine, strategy: str) -> AsyncIterator[AgentProcess]:
    machine.extra["MIG_STRATEGY"] = strategy
    with AgentProcess(machine) as agent:
        await agent.ready()
        yield agent


@pytest.fixture
async def sockets(machine: Machine) -> AsyncIterator[PluginKubelet]:
    kubelet = PluginKubelet(machine.sockets)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


async def list_devices(kubelet: PluginKubelet, resource: str) -> dict[str, str]:
    kubelet.registered.sort(key=lambda each: each[0] == resource)
    async with kubelet.plugin() as plugin:
        answer = await plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S).read()
    return {device.ID: device.health for device in answer.devices}


async def test_with_mixed_each_profile_is_a_resource_beside_the_slices(
    machine: Machine, sockets: PluginKubelet, control: Control
) -> None:
    cut(machine, None, [instance(MIG_A, 1, 9728, 7), instance(MIG_B, 3, 40192, 2)])
    access = machine.root / "proc/driver/nvidia/capabilities/gpu1/mig/gi7"
    (access / "ci0").mkdir(parents=True)
    (access / "access").write_text("DeviceFileMinor: 30\nDeviceFileMode: 292\n")
    (access / "ci0/access").write_text("DeviceFileMinor: 31\nDeviceFileMode: 292\n")
    machine.extra["PASS_DEVICE_SPECS"] = "true"
    machine.extra["HAMI_NODE_AGENT_PROC_ROOT"] = str(machine.root / "proc")
    async with agent_with(machine, "mixed"):
        assert set(sockets.registered) == {
            ("nvidia.com/gpu", "nvidia-gpu.sock"),
            ("nvidia.com/mig-1g.10gb", "nvidia-mig-1g.10gb.sock"),
            ("nvidia.com/mig-3g.40gb", "nvidia-mig-3g.40gb.sock"),
        }
        assert await list_devices(sockets, "nvidia.com/mig-3g.40gb") == {MIG_B: "Healthy"}
        assert set(await list_devices(sockets, "nvidia.com/gpu")) == {
            f"{CARDS[0]}-{n}" for n in range(10)
        }
        assert [d.uuid for d in (await eventually(lambda: control.inventories))[-1].devices] == [
            CARDS[0]
        ]

        assert await list_devices(sockets, "nvidia.com/mig-1g.10gb") == {MIG_A: "Healthy"}
        answer = await sockets.allocate(MIG_A)
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": MIG_A}
        assert [d.container_path for d in answer.devices] == [
            "/dev/nvidia1",
            "/dev/nvidia-caps/nvidia-cap30",
            "/dev/nvidia-caps/nvidia-cap31",
        ]

        async with sockets.listening():
            await eventually(lambda: sockets.lists)
            machine.control("lose", "1")
            await eventually(lambda: sockets.lists[-1] == {MIG_A: "Unhealthy"})
            machine.control("restore", "1")
            await eventually(lambda: sockets.lists[-1] == {MIG_A: "Healthy"})


async def test_with_single_the_count_resource_counts_instances(
    machine: Machine, sockets: PluginKubelet, control: Control
) -> None:
    cut(machine, [instance(MIG_A, 1, 9728, 7)], [instance(MIG_B, 1, 9728, 7)])
    async with agent_with(machine, "single"):
        assert sockets.registered == [("nvidia.com/gpu", "nvidia-gpu.sock")]
        assert await list_devices(sockets, "nvidia.com/gpu") == {MIG_A: "Healthy", MIG_B: "Healthy"}
        assert dict((await sockets.allocate(MIG_B)).envs) == {"NVIDIA_VISIBLE_DEVICES": MIG_B}


async def test_with_none_a_card_in_mig_mode_is_a_card(
    machine: Machine, sockets: PluginKubelet, control: Control
) -> None:
    cut(machine, None, [instance(MIG_A, 1, 9728, 7)])
    async with agent_with(machine, "none"):
        assert sockets.registered == [("nvidia.com/gpu", "nvidia-gpu.sock")]
        assert len(await list_devices(sockets, "nvidia.com/gpu")) == 20


async def test_single_with_cards_that_differ_ends_in_one_clear_line(
    machine: Machine, sockets: PluginKubelet
) -> None:
    cut(machine, None, [instance(MIG_A, 1, 9728, 7)])
    machine.extra["MIG_STRATEGY"] = "single"
    agent = AgentProcess(machine)
    agent.start()

    assert agent.wait() == 1
    assert (
        "1 of 2 cards are in MIG mode; partition all cards identically"
        in agent.log.splitlines()[-1]
    )
