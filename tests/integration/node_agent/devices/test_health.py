"""Cards that fail, appear, disappear and recover, over the stand-in driver."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hamicommon.domain.granted_cards import IN_MIG_MODE
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api

from tests.integration.node_agent.conftest import ApiServer
from tests.integration.node_agent.control import Control
from tests.integration.node_agent.machine import CARDS, NODE, AgentProcess, Kubelet, Machine
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native


def latest(control: Control) -> dict[str, str]:
    """Health reasons by card in the last inventory."""
    if not control.inventories:
        return {}
    return {device.uuid: device.health_reason for device in control.inventories[-1].devices}


async def test_an_xid_makes_its_card_sick_and_an_applications_does_not(
    agent: AgentProcess, control: Control, machine: Machine
) -> None:
    await eventually(lambda: latest(control) == dict.fromkeys(CARDS, ""))
    # Two NVLinks, and one CPU.
    assert control.inventories[-1].pair_scores == {
        CARDS[0]: {CARDS[1]: 220},
        CARDS[1]: {CARDS[0]: 220},
    }

    machine.control("xid", "0", "31")
    machine.control("xid", "1", "79")

    await eventually(lambda: latest(control) == {CARDS[0]: "", CARDS[1]: "XID 79"})
    # Half a second of quiet and three good probes.
    await eventually(lambda: latest(control) == dict.fromkeys(CARDS, ""))
    text = agent.get("/metrics")[1]
    assert (
        f'hami_node_agent_xid_events_total{{counts="false",device_uuid="{CARDS[0]}",xid="31"}} 1'
        in text
    )
    assert (
        f'hami_node_agent_xid_events_total{{counts="true",device_uuid="{CARDS[1]}",xid="79"}} 1'
        in text
    )


async def test_cards_are_plugged_in_and_pulled_out_while_the_agent_runs(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    taken = machine.root / "sys/bus/pci/drivers/nvidia"
    taken.mkdir(parents=True)
    (taken / "0000:07:00.0").touch()
    machine.extra["HAMI_NODE_AGENT_SYSFS_ROOT"] = str(machine.root / "sys")
    machine.control("unplug", "1")
    with AgentProcess(machine):
        await eventually(lambda: latest(control) == {CARDS[0]: ""})

        machine.control("plug", "1")
        (taken / "0000:08:00.0").touch()
        await eventually(lambda: latest(control) == dict.fromkeys(CARDS, ""))

        machine.control("unplug", "0")
        (taken / "0000:07:00.0").unlink()
        await eventually(lambda: latest(control) == {CARDS[0]: "Not Found", CARDS[1]: ""})

        machine.control("xid", "1", "48")
        await eventually(lambda: latest(control)[CARDS[1]] == "XID 48")


RELOADED = """
import json, pathlib, pynvml
from hami_node_agent.adapters.nvml.driver import NvmlDriver
driver = NvmlDriver(sysfs_root=pathlib.Path("/nowhere"), fallback_memory_mib=0)
driver.start()
driver.cards()
driver.register_events()
found = [driver.is_outdated(), len(driver.probe())]
pynvml.nvmlShutdown()
found += [driver.is_outdated(), sorted({str(f.reason) for f in driver.probe().values()})]
driver.reload()
found += [driver.is_outdated(), len(driver.probe()), driver.wait_for_event()]
print(json.dumps(found))
"""


def test_a_driver_that_was_reloaded_is_asked_again(machine: Machine) -> None:
    """NVML answers that it is uninitialised once its driver was unloaded."""
    done = subprocess.run(
        [sys.executable, "-c", RELOADED],
        env=machine.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert json.loads(done.stdout) == [False, 0, True, ["Uninitialized"], False, 0, None]


async def test_health_is_reported_both_ways(
    api_server: ApiServer,
    agent: AgentProcess,
    kubelet: Kubelet,
    control: Control,
    machine: Machine,
) -> None:
    async with kubelet.plugin() as plugin:
        stream = plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S)
        assert await unhealthy(stream) == set()

        machine.control("xid", "1", "31")
        machine.control("xid", "1", "79")
        sick = {f"{CARDS[1]}-{number}" for number in range(10)}
        assert await unhealthy(stream) == sick
        await eventually(
            lambda: any(i.devices[1].health_reason == "XID 79" for i in control.inventories)
        )
        assert '"health"' not in (await register_text(api_server, healthy=1)).split("},")[1]

        assert await unhealthy(stream) == set()
        await eventually(lambda: control.inventories[-1].devices[1].healthy)
        await register_text(api_server, healthy=2)


async def unhealthy(stream: Any) -> set[str]:
    answer = await stream.read()
    assert len(answer.devices) == 20
    return {device.ID for device in answer.devices if device.health == "Unhealthy"}


async def register_text(server: ApiServer, *, healthy: int) -> str:
    """The Node's register annotation, once it has `healthy` healthy cards."""
    async with server.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            node = await client.get(f"/api/v1/nodes/{NODE}")
            annotations = node["metadata"].get("annotations") or {}
            text = str(annotations.get("hami.io/node-nvidia-register", ""))
            if text.count('"health":true') == healthy:
                return text
            await asyncio.sleep(0.05)


async def test_a_lost_card_is_sick_until_it_is_back(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await eventually(lambda: control.inventories)

    machine.control("lose", "0")
    await eventually(lambda: not control.inventories[-1].devices[0].healthy)
    assert control.inventories[-1].devices[1].healthy
    machine.control("restore", "0")

    await eventually(lambda: control.inventories[-1].devices[0].healthy)


SWITCH = """
import pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex({index})
pynvml.nvmlDeviceSetMigMode(card, {mode})
assert pynvml.nvmlDeviceGetMigMode(card)[0] == {mode}
"""


async def test_a_card_that_is_switched_to_mig_mode_is_sick_until_it_is_switched_back(
    agent: AgentProcess, control: Control, machine: Machine
) -> None:
    def switch(index: int, mode: int) -> None:
        code = SWITCH.format(index=index, mode=mode)
        subprocess.run(
            [sys.executable, "-c", code], env=machine.env(), check=True, timeout=PATIENCE_S
        )

    await eventually(lambda: latest(control) == dict.fromkeys(CARDS, ""))

    switch(1, 1)
    await eventually(lambda: latest(control) == {CARDS[0]: "", CARDS[1]: IN_MIG_MODE})

    switch(1, 0)
    await eventually(lambda: latest(control) == dict.fromkeys(CARDS, ""))
