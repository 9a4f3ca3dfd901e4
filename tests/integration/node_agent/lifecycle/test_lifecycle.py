"""Starts, restarts, losses and ends of the kubelet, the agent, files and pods on a node."""

import asyncio
import json
import signal
from pathlib import Path

import grpc
import pytest
from hami_node_agent.adapters.state_file import StateFile
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject
from hamicommon.grants.signing import load_private_key, new_key_pair, sign

from tests.integration.node_agent.conftest import ApiPods, ApiServer
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


A_0, B_0 = f"{CARDS[0]}-0", f"{CARDS[1]}-0"


async def test_the_agent_registers_again_with_a_restarted_kubelet(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    assert kubelet.registrations == ["nvidia-gpu.sock"]

    await kubelet.stop()
    await kubelet.start()
    await eventually(lambda: len(kubelet.registrations) == 2)
    await agent.ready()

    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)


async def test_the_agent_serves_again_when_its_socket_is_removed(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    async def unready() -> str:
        asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
        return Readiness.model_validate_json(await control.bus.request(*asked)).reason

    assert "socket" not in await unready()

    (machine.sockets / "nvidia-gpu.sock").unlink()
    # Streams outlive the file; a pod that is bound now would fail its admission.
    assert "socket" in await unready()
    await eventually(lambda: len(kubelet.registrations) == 2)
    await agent.ready()

    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)


async def test_the_agent_waits_for_a_kubelet_that_is_not_there_yet(
    machine: Machine, control: Control
) -> None:
    with AgentProcess(machine) as agent:
        await eventually(lambda: agent.get("/healthz")[0] == 200)
        status, body = agent.get("/readyz")
        assert (status, json.loads(body)["reason"]) == (
            503,
            "not registered with the kubelet: nvidia.com/gpu",
        )
        kubelet = Kubelet(machine)
        (machine.sockets / "other.sock").touch()
        await kubelet.start()
        await agent.ready()
        await kubelet.stop()


async def test_a_stopped_agent_leaves_pods_alone(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)

    code = agent.stop(signal.SIGTERM)

    assert code == 0, agent.log
    assert "Traceback" not in agent.log
    assert all(path.exists() for path in mounts_of(answer).values())


async def test_after_a_kill_between_two_containers_the_pod_goes_on(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(
        grant("a", container(share(), name="one"), container(share(1), name="two", index=1))
    )
    await kubelet.allocate("a", "one", A_0)

    agent.stop(signal.SIGKILL)
    await agent.start_again()
    two = await kubelet.allocate("a", "two", B_0)

    assert f"device {CARDS[1]} " in limits_of(two)
    [report] = await eventually(lambda: control.reports_of("allocated"))
    assert report.pod_uid == "a"
    await kubelet.prestart(A_0)
    await kubelet.prestart(B_0)


async def test_a_report_that_the_bus_has_not_taken_survives_a_kill(
    machine: Machine, kubelet: Kubelet, nats_url: str, control: Control, folder: Path
) -> None:
    private, public = new_key_pair()
    (folder / "grant.pub").write_bytes(public)
    (folder / "grant.key").write_bytes(private)
    server = ApiServer(folder)
    await server.start()
    machine.kubeconfig = server.kubeconfig
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    machine.nats_url = "nats://127.0.0.1:9"
    try:
        with AgentProcess(machine) as agent:
            async with server.client() as client:
                await client.create("/api/v1/nodes", {"metadata": {"name": NODE}})
                pods = ApiPods(client)
                await pods.create("a")
                signed = grant(pods.uids["a"]).model_copy(update={"pod_name": "a"})
                text = sign(signed, load_private_key(folder / "grant.key"))
                await pods.annotate("a", {"hami.io/grant": text})
            await agent.ready()
            answer = await kubelet.allocate(pods.uids["a"], "main", A_0)
            await kubelet.prestart(A_0)
            assert f"device {CARDS[0]} memory_bytes 4294967296" in limits_of(answer)
            await eventually(
                lambda: StateFile(machine.state).load().reports, "the report to be kept"
            )

            agent.stop(signal.SIGKILL)
            machine.nats_url = nats_url
            agent.start()

            [report] = await eventually(lambda: control.reports_of("allocated"))
            assert report.pod_uid == pods.uids["a"]
    finally:
        server.stop()


@pytest.mark.parametrize("loss", ["missing", "damaged"])
async def test_a_lost_state_is_rebuilt_from_checkpoint_and_ledger(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, loss: str
) -> None:
    item = grant("a")
    await control.announce(item)
    answer = await kubelet.allocate("a", "main", A_0)
    await eventually(lambda: control.reports_of("allocated"))
    control.keep(item, "allocated")

    agent.stop(signal.SIGKILL)
    if loss == "missing":
        machine.state.unlink()
    else:
        machine.state.write_bytes(b'{"version": 1, "records": [')
    (mounts_of(answer)["/etc/hami"] / "limits").unlink()
    await agent.start_again()
    await kubelet.prestart(A_0)

    assert f"device {CARDS[0]} memory_bytes 4294967296 core_percent 30" in limits_of(answer)
    assert control.reports_of("moved") == []


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HAMI_NODE_AGENT_NODE_NAME", "", "NODE_NAME"),
        ("HAMI_NODE_AGENT_LIBRARY_PATH", "/nowhere", "expected libvgpu.so"),
        ("HAMI_NODE_AGENT_LIBRARY_PATH", "/bin/sh", "no place for the agent's mark"),
        ("HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE", "/nowhere", "not a usable PEM key"),
        ("HAMI_NODE_AGENT_METRICS_BIND", "nonsense", "METRICS_BIND"),
        ("LD_LIBRARY_PATH", "/nowhere", "NVML"),
    ],
)
async def test_bad_settings_end_in_one_clear_line(
    machine: Machine, variable: str, value: str, message: str
) -> None:
    machine.extra[variable] = value
    agent = AgentProcess(machine)
    agent.start()

    code = await asyncio.to_thread(agent.wait)

    assert code == 1
    assert message in agent.log.splitlines()[-1]
    assert "Traceback" not in agent.log


async def readiness(control: Control) -> Readiness:
    asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
    return Readiness.model_validate_json(await control.bus.request(*asked))


async def test_a_pod_that_was_bound_before_the_stop_still_gets_its_answer(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "30"
    with AgentProcess(machine) as agent:
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


async def test_a_new_configuration_counts_after_a_hang_up_and_a_broken_one_changes_nothing(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    file = machine.root / "device-config.yaml"
    file.write_text("nvidia: {}")
    machine.extra["HAMI_NODE_AGENT_DEVICE_CONFIG_FILE"] = str(file)
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "0"
    with AgentProcess(machine) as agent:
        await agent.ready()
        # The agent is ready before its published inventory has arrived here.
        await eventually(
            lambda: {d.slots for each in control.inventories[-1:] for d in each.devices} == {10}
        )
        await control.announce(grant("a"))
        before = await kubelet.allocate("a", "main", A_0)

        file.write_text("{")
        agent.send(signal.SIGHUP)
        await eventually(
            lambda: "Keeping the old configuration: the new one is invalid" in agent.log
        )
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
