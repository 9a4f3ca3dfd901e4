"""SIGTERM that no pod notices, SIGHUP that reads everything again."""

import asyncio
import signal

import grpc
import pytest
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject

from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import (
    CARDS,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.integration, pytest.mark.native]

A_0 = f"{CARDS[0]}-0"


async def readiness(control: Control) -> Readiness:
    asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
    return Readiness.model_validate_json(await control.bus.request(*asked))


async def test_a_pod_that_was_bound_before_the_stop_still_gets_its_answer(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "30"
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        await control.announce(grant("a"))
        await control.until_all_is_consumed()

        stopping = asyncio.create_task(asyncio.to_thread(agent.stop, signal.SIGTERM))
        await eventually(lambda: '"its agent is stopping"' in agent.get("/readyz")[1])
        reply = await readiness(control)
        answer = await kubelet.allocate("a", "main", A_0)

        assert (reply.ready, reply.reason) == (False, "its agent is stopping")
        assert f"device {CARDS[0]} " in limits_of(answer)
        assert await asyncio.wait_for(stopping, PATIENCE_S) == 0
        assert "Traceback" not in agent.log
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.allocate("b", "main", f"{CARDS[0]}-1")
    finally:
        agent.close()


async def test_a_new_configuration_counts_after_a_hang_up_and_a_broken_one_changes_nothing(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    file = machine.root / "device-config.yaml"
    file.write_text("nvidia: {}")
    machine.extra["HAMI_NODE_AGENT_DEVICE_CONFIG_FILE"] = str(file)
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "0"
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        # Ready is the agent before what it published has come here.
        await eventually(
            lambda: {d.slots for each in control.inventories[-1:] for d in each.devices} == {10}
        )
        await control.announce(grant("a"))
        before = await kubelet.allocate("a", "main", A_0)

        file.write_text("{")
        agent.send(signal.SIGHUP)
        await eventually(lambda: "configuration not changed" in agent.log)
        assert len(kubelet.registrations) == 1

        file.write_text("nvidia: {deviceSplitCount: 3}")
        agent.send(signal.SIGHUP)
        await eventually(lambda: len(kubelet.registrations) == 2)
        await agent.ready()

        await eventually(
            lambda: {d.slots for each in control.inventories[-1:] for d in each.devices} == {3}
        )
        await kubelet.prestart(A_0)
        assert f"device {CARDS[0]} " in limits_of(before)
        assert agent.stop(signal.SIGTERM) == 0
        assert "Traceback" not in agent.log
    finally:
        agent.close()
