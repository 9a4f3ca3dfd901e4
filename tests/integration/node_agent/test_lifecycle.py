"""Restarts and losses on a node: the kubelet's, the agent's, of files, bus and API server."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject
from hamicommon.grant_keys import load_private_key, new_key_pair, sign
from hamicommon.kubelet._generated import deviceplugin_pb2 as api

from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    DEADLINE_S,
    NODE,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
    mounts_of,
    until,
)

pytestmark = [pytest.mark.integration, pytest.mark.native]

A_0, A_1, B_0 = f"{CARDS[0]}-0", f"{CARDS[0]}-1", f"{CARDS[1]}-0"
KILLS = 3


async def test_the_agent_registers_again_with_a_restarted_kubelet(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    assert kubelet.registrations == ["nvidia-gpu.sock"]

    await kubelet.stop()
    await kubelet.start()
    await until(lambda: len(kubelet.registrations) == 2)
    await agent.ready()

    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)


async def test_the_agent_serves_anew_when_its_socket_is_removed(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    async def unready() -> str:
        asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
        return Readiness.model_validate_json(await control.bus.request(*asked)).reason

    assert "socket" not in await unready()

    (machine.sockets / "nvidia-gpu.sock").unlink()
    # Streams outlive the file; a pod that is bound now would fail its admission.
    assert "socket" in await unready()
    await until(lambda: len(kubelet.registrations) == 2)
    await agent.ready()

    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)


async def test_the_agent_waits_for_a_kubelet_that_is_not_there_yet(
    machine: Machine, control: Control
) -> None:
    agent = AgentProcess(machine)
    agent.start()
    try:
        await until(lambda: agent.get("/healthz")[0] == 200)
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
    finally:
        agent.close()


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
    agent.start()
    await agent.ready()
    two = await kubelet.allocate("a", "two", B_0)

    assert f"device {CARDS[1]} " in limits_of(two)
    [report] = await until(lambda: control.reported("allocated"))
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
    agent = AgentProcess(machine)
    agent.start()
    try:
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

        agent.stop(signal.SIGKILL)
        machine.nats_url = nats_url
        agent.start()

        [report] = await until(lambda: control.reported("allocated"))
        assert report.pod_uid == pods.uids["a"]
    finally:
        agent.close()
        server.stop()


FORGED = ["another key", "another pod", "another node", "expired"]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_signed_grant_that_is_not_good_for_this_pod_is_refused(
    machine: Machine, kubelet: Kubelet, api_pods: ApiPods, folder: Path, forged: str
) -> None:
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(new_key_pair()[0] if forged == "another key" else private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    machine.nats_url = "nats://127.0.0.1:9"
    await api_pods.create("a")
    change: dict[str, Any] = {
        "another key": {},
        "another pod": {"pod_uid": "somebody-else"},
        "another node": {"node": "node-2"},
        "expired": {"expires_at": datetime.now(UTC) - timedelta(seconds=1)},
    }[forged]
    bad = grant(api_pods.uids["a"]).model_copy(update=change)
    text = sign(bad, load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(api_pods.uids["a"], "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus away" in (refused.value.details() or "")
    finally:
        agent.close()


@pytest.mark.parametrize(
    ("ledger", "accepted"), [("answers", False), ("can't be read", True), ("is silent", True)]
)
async def test_a_signed_grant_counts_only_while_the_ledger_cannot_be_asked(
    machine: Machine,
    kubelet: Kubelet,
    control: Control,
    api_pods: ApiPods,
    folder: Path,
    ledger: str,
    accepted: bool,
) -> None:
    """The grant ended while its binder was held up; the pod came all the same (S3)."""
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    control.complete = ledger != "can't be read"
    control.answers_snapshots = ledger != "is silent"
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    text = sign(grant(uid), load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        if accepted:
            assert f"device {CARDS[0]} " in limits_of(await kubelet.allocate(uid, "main", A_0))
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(uid, "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus connected" in (refused.value.details() or "")
    finally:
        agent.close()


@pytest.mark.parametrize("loss", ["missing", "damaged"])
async def test_a_lost_state_is_rebuilt_from_checkpoint_and_ledger(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, loss: str
) -> None:
    item = grant("a")
    await control.announce(item)
    answer = await kubelet.allocate("a", "main", A_0)
    await until(lambda: control.reported("allocated"))
    control.keep(item, "allocated")

    agent.stop(signal.SIGKILL)
    if loss == "missing":
        machine.state.unlink()
    else:
        machine.state.write_bytes(b'{"version": 1, "records": [')
    (mounts_of(answer)["/etc/hami"] / "limits").unlink()
    agent.start()
    await agent.ready()
    await kubelet.prestart(A_0)

    assert f"device {CARDS[0]} memory_bytes 4294967296 core_percent 30" in limits_of(answer)
    assert control.reported("moved") == []


async def test_a_pod_that_left_is_reported_and_its_files_are_removed(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[uid] = "a"
    answer = await kubelet.allocate(uid, "main", A_0)
    await until(lambda: control.reported("allocated"))
    control.live.clear()

    await api_pods.delete("a")
    for _ in range(5):
        assert control.reported("gone") == []
        await asyncio.sleep(0.1)
    kubelet.forget(uid)

    [report] = await until(lambda: control.reported("gone"))
    assert report.pod_uid == uid
    mounts = mounts_of(answer)
    await until(lambda: not mounts["/etc/hami"].exists())
    await until(lambda: not mounts["/usr/local/vgpu"].exists())


async def test_files_of_a_pod_that_left_stay_while_another_holds_its_answer(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await api_pods.create("a", "b")
    uid, other = api_pods.uids["a"], api_pods.uids["b"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[other] = "b"
    answer = await kubelet.allocate(other, "main", A_0)
    await until(lambda: control.reported("allocated"))
    control.live.clear()

    await api_pods.delete("a")
    await until(lambda: control.reported("gone"))
    await control.announce(grant(other, token=2).model_copy(update={"pod_name": "b"}))
    await kubelet.prestart(A_0)

    assert f"device {CARDS[0]} memory_bytes 4294967296 core_percent 30" in limits_of(answer)
    assert all(path.exists() for path in mounts_of(answer).values())


async def test_a_pod_deleted_by_force_has_not_left_while_its_process_lives(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[uid] = "a"
    await kubelet.allocate(uid, "main", A_0)
    await until(lambda: control.reported("allocated"))
    cgroup = machine.cgroups / "kubepods" / "burstable" / f"pod{uid}"
    cgroup.mkdir(parents=True)
    (cgroup / "cgroup.events").write_text("populated 1\n")

    await api_pods.delete("a")
    kubelet.forget(uid)
    for _ in range(10):
        assert control.reported("gone") == []
        await asyncio.sleep(0.1)
    (cgroup / "cgroup.events").write_text("populated 0\n")

    [report] = await until(lambda: control.reported("gone"))
    assert report.pod_uid == uid


async def test_a_stranger_reads_the_reason_in_an_event(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet
) -> None:
    await api_pods.create("stranger")
    for _ in range(KILLS):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.allocate(api_pods.uids["stranger"], "main", A_0)
        if await api_pods.events("stranger"):
            break

    [message, *_] = await api_pods.events("stranger")
    assert "set spec.schedulerName" in message


async def test_health_is_told_both_ways(
    api_server: ApiServer,
    agent: AgentProcess,
    kubelet: Kubelet,
    control: Control,
    machine: Machine,
) -> None:
    async with kubelet.plugin() as plugin:
        stream = plugin.ListAndWatch(api.Empty(), timeout=DEADLINE_S)
        assert await unhealthy(stream) == set()

        machine.control("xid", "1", "31")
        machine.control("xid", "1", "79")
        sick = {f"{CARDS[1]}-{number}" for number in range(10)}
        assert await unhealthy(stream) == sick
        await until(
            lambda: any(i.devices[1].health_reason == "XID 79" for i in control.inventories)
        )
        assert '"health"' not in (await register_text(api_server, healthy=1)).split("},")[1]

        assert await unhealthy(stream) == set()
        await until(lambda: control.inventories[-1].devices[1].healthy)
        await register_text(api_server, healthy=2)


async def unhealthy(stream: Any) -> set[str]:
    answer = await stream.read()
    assert len(answer.devices) == 20
    return {device.ID for device in answer.devices if device.health == "Unhealthy"}


async def register_text(server: ApiServer, *, healthy: int) -> str:
    """The Node's register annotation, once it has so many healthy cards."""
    async with server.client() as client, asyncio.timeout(DEADLINE_S):
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
    await until(lambda: control.inventories)

    machine.control("lose", "0")
    await until(lambda: not control.inventories[-1].devices[0].healthy)
    assert control.inventories[-1].devices[1].healthy
    machine.control("restore", "0")

    await until(lambda: control.inventories[-1].devices[0].healthy)


async def test_inventory_is_repeated_and_says_what_the_node_offers(
    agent: AgentProcess, control: Control
) -> None:
    await until(lambda: len(control.inventories) >= 2)

    first, second = control.inventories[:2]
    assert (first.agent_id, first.sequence + 1) == (second.agent_id, second.sequence)
    assert [(d.uuid, d.slots, d.memory_mib, d.core_percent) for d in second.devices] == [
        (uuid, 10, 81920, 100) for uuid in CARDS
    ]


async def test_allocate_continues_the_trace_of_the_grant(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    await control.announce(grant("a", traceparent=f"00-{trace_id}-b7ad6b7169203331-01"))

    await kubelet.allocate("a", "main", A_0)

    [report] = await until(lambda: control.reported("allocated"))
    assert trace_id in report.traceparent
    agent.stop(signal.SIGTERM)
    spans = [json.loads(line) for line in (machine.root / "traces.jsonl").read_text().splitlines()]
    [span] = [span for span in spans if span["name"] == "allocate"]
    assert span["context"]["trace_id"] == f"0x{trace_id}"
    assert span["attributes"]["pod.uid"] == "a"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HAMI_NODE_AGENT_NODE_NAME", "", "NODE_NAME"),
        ("HAMI_NODE_AGENT_LIBRARY_PATH", "/nowhere", "libvgpu.so is wanted"),
        ("HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE", "/nowhere", "no usable PEM key"),
        ("HAMI_NODE_AGENT_METRICS_BIND", "nonsense", "METRICS_BIND"),
        ("LD_LIBRARY_PATH", "/nowhere", "NVML"),
    ],
)
async def test_bad_settings_end_in_one_clear_line(
    machine: Machine, variable: str, value: str, words: str
) -> None:
    machine.extra[variable] = value
    agent = AgentProcess(machine)
    agent.start()

    code = await asyncio.to_thread(agent.wait)

    assert code == 1
    assert words in agent.log.splitlines()[-1]
    assert "Traceback" not in agent.log
