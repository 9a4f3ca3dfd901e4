"""Late binding: Allocate answers a nonce, PreStartContainer defines its devices by CDI."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from kubelocal.kubelet.devices.cdi import Edits, edits_of

from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import CARDS, NODE, AgentProcess, Kubelet, Machine
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native

A_0, A_1, B_0 = f"{CARDS[0]}-0", f"{CARDS[0]}-1", f"{CARDS[1]}-0"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.extra["HAMI_NODE_AGENT_BINDING"] = "late"
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "0"
    return machine


def name_in(answer: api.ContainerAllocateResponse) -> str:
    [device] = answer.cdi_devices
    return str(device.name)


def edits(machine: Machine, answer: api.ContainerAllocateResponse) -> Edits:
    """Return the edits of a container with this answer, as a runtime reads them."""
    return edits_of([name_in(answer)], machine.cdi)


def limits_of(machine: Machine, answer: api.ContainerAllocateResponse) -> str:
    mounts = {mount.container_path: mount for mount in edits(machine, answer).mounts}
    return (Path(mounts["/etc/hami"].host_path) / "limits").read_text()


def memory_of(machine: Machine, answer: api.ContainerAllocateResponse) -> str:
    return dict(edits(machine, answer).envs)["CUDA_DEVICE_MEMORY_LIMIT_0"]


async def test_the_answer_is_one_name_and_waits_for_no_grant(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    first = await kubelet.allocate("a", "main", A_0)
    again = await kubelet.allocate("a", "main", A_0)

    for answer in (first, again):
        name = name_in(answer)
        assert name.startswith("hami.io/slice=")
        # The Node here does not state how old its kubelet is, so both ways are answered.
        assert answer == api.ContainerAllocateResponse(
            annotations={"cdi.k8s.io/hami-slice": name}, cdi_devices=[api.CDIDevice(name=name)]
        )
    assert name_in(first) != name_in(again)


async def test_pods_in_another_order_get_their_own_cards_and_nothing_is_moved(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    for_b = await kubelet.allocate("b", "main", A_0)
    for_a = await kubelet.allocate("a", "main", B_0)
    await control.announce(
        grant("a", container(share(0, 1024, 10)), token=1),
        grant("b", container(share(1, 8192, 50)), token=2),
    )

    await kubelet.prestart(A_0)
    await kubelet.prestart(B_0)

    assert memory_of(machine, for_a) == "1024m"
    assert memory_of(machine, for_b) == "8192m"
    # The ledger's cards, whatever ids the kubelet counted.
    assert dict(edits(machine, for_a).envs)["NVIDIA_VISIBLE_DEVICES"] == CARDS[0]
    assert dict(edits(machine, for_b).envs)["NVIDIA_VISIBLE_DEVICES"] == CARDS[1]
    assert f"device {CARDS[1]} memory_bytes {8192 << 20} core_percent 50" in (
        limits_of(machine, for_b)
    )
    await eventually(lambda: {r.pod_uid for r in control.reports_of("allocated")} == {"a", "b"})
    assert control.reports_of("moved") == []


async def test_a_file_holds_what_hami_answers_and_is_not_touched_by_a_restart(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)
    [file] = machine.cdi.glob("*.json")
    made = file.stat().st_ino, file.read_bytes()

    await kubelet.prestart(A_0)

    assert (file.stat().st_ino, file.read_bytes()) == made
    assert [mount.container_path for mount in edits(machine, answer).mounts] == [
        "/usr/local/vgpu/libvgpu.so",
        "/usr/local/vgpu",
        dict(edits(machine, answer).envs)["CUDA_DEVICE_MEMORY_SHARED_CACHE"],
        "/etc/hami",
        "/etc/ld.so.preload",
    ]


@pytest.mark.parametrize("loss", ["file gone", "file damaged", "limits gone"])
async def test_what_was_lost_is_put_right_before_a_start(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, loss: str
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)
    [file] = machine.cdi.glob("*.json")
    if loss == "file gone":
        file.unlink()
    elif loss == "file damaged":
        file.write_bytes(b"{")
    else:
        (Path(edits(machine, answer).mounts[3].host_path) / "limits").unlink()

    await kubelet.prestart(A_0)

    assert memory_of(machine, answer) == "4096m"
    assert f"memory_bytes {4096 << 20}" in limits_of(machine, answer)


async def test_an_agent_that_was_killed_between_answer_and_start_has_lost_nothing(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    answer = await kubelet.allocate("a", "main", A_0)
    await control.announce(grant("a"))
    agent.stop(signal.SIGKILL)
    await agent.start_again()

    await kubelet.prestart(A_0)

    assert memory_of(machine, answer) == "4096m"


async def test_init_and_main_container_with_the_same_ids_have_a_file_each(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    first = container(share(0, 1024), name="first", role="init")
    await control.announce(grant("a", first, container(share(0, 2048), name="main", index=1)))
    for_first = await kubelet.allocate("a", "first", A_0)
    for_main = await kubelet.allocate("a", "main", A_0)

    await kubelet.prestart(A_0)

    assert memory_of(machine, for_first) == "1024m"
    assert memory_of(machine, for_main) == "2048m"


async def test_a_pod_without_a_grant_does_not_start_and_has_no_file(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await kubelet.allocate("unscheduled", "main", A_0)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.prestart(A_0)

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "without a grant" in (refused.value.details() or "")
    assert list(machine.cdi.glob("*.json")) == []


async def test_a_container_restarts_while_nobody_can_be_asked(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    item = grant("a")
    await control.announce(item)
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)
    await control.withdraw(item)
    await control.until_all_is_consumed()
    control.answers_snapshots = False

    await kubelet.prestart(A_0)

    assert memory_of(machine, answer) == "4096m"


async def test_a_pod_granted_again_keeps_its_cards_or_does_not_start(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)
    renewed = grant("a", container(share(0, 2048, 20)), token=2)
    await control.announce(renewed.model_copy(update={"allocation_id": "another"}))
    await control.until_all_is_consumed()
    await kubelet.prestart(A_0)
    assert f"memory_bytes {2048 << 20} core_percent 20" in limits_of(machine, answer)

    moved = grant("a", container(share(1, 2048, 20)), token=3)
    await control.announce(moved.model_copy(update={"allocation_id": "a third"}))
    await control.until_all_is_consumed()
    with pytest.raises(grpc.aio.AioRpcError, match="on other cards now"):
        await kubelet.prestart(A_0)


async def test_without_the_checkpoint_the_container_waits(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    await kubelet.allocate("a", "main", A_0)
    machine.checkpoint.write_bytes(b"damaged")

    with pytest.raises(grpc.aio.AioRpcError) as waiting:
        await kubelet.prestart(A_0)
    kubelet.write_checkpoint()
    await kubelet.prestart(A_0)

    assert waiting.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_answer_of_the_lock_way_is_checked_as_it_was_given(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    agent.stop()
    machine.extra["HAMI_NODE_AGENT_BINDING"] = "lock"
    await agent.start_again()
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    assert not answer.cdi_devices
    agent.stop()
    machine.extra["HAMI_NODE_AGENT_BINDING"] = "late"
    await agent.start_again()

    await kubelet.prestart(A_0)

    assert not machine.cdi.exists() or list(machine.cdi.glob("*.json")) == []


async def test_a_pod_that_left_leaves_no_file_and_the_node_shows_its_way(
    api_server: ApiServer,
    api_pods: ApiPods,
    agent: AgentProcess,
    kubelet: Kubelet,
    control: Control,
    machine: Machine,
) -> None:
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    await control.announce(grant(uid).model_copy(update={"pod_name": "a"}))
    kubelet.pods[uid] = "a"
    await kubelet.allocate(uid, "main", A_0)
    await kubelet.prestart(A_0)
    assert len(list(machine.cdi.glob("*.json"))) == 1

    await api_pods.delete("a")
    kubelet.forget(uid)

    await eventually(lambda: list(machine.cdi.glob("*.json")) == [])
    asked = readiness_subject(NODE), ReadinessRequest(node=NODE)
    async with kubelet.plugin() as plugin:
        await plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S).read()
        async with asyncio.timeout(PATIENCE_S):
            while not Readiness.model_validate_json(await control.bus.request(*asked)).late:
                await asyncio.sleep(0.1)

    async def way() -> Any:
        async with api_server.client() as client:
            node = await client.get(f"/api/v1/nodes/{NODE}")
        return (node["metadata"].get("annotations") or {}).get("hami.io/binding")

    assert await way() == "late: binding is set to late"


async def test_late_binding_that_cannot_be_ends_in_one_clear_line(
    machine: Machine, kubelet: Kubelet
) -> None:
    machine.extra["DEVICE_LIST_STRATEGY"] = "cdi-cri"
    agent = AgentProcess(machine)
    agent.start()

    assert await asyncio.to_thread(agent.wait) == 1
    assert "device_list_strategy names cards by CDI" in agent.log.splitlines()[-1]


def test_a_described_device_is_a_cdi_file_of_the_specification(tmp_path: Path) -> None:
    from hami_node_agent.adapters.cdi_files import CdiFiles
    from hami_node_agent.devices.device_list import ContainerSpec, MountSpec

    mount = MountSpec(container_path="/c", host_path="/h", read_only=True)
    files = CdiFiles(tmp_path / "cdi")
    files.write("n", ContainerSpec(envs={"A": "b"}, mounts=(mount,), device_files=(("/d", "/e"),)))

    assert orjson.loads((tmp_path / "cdi/hami.io-slice_n.json").read_bytes()) == {
        "cdiVersion": "0.5.0",
        "kind": "hami.io/slice",
        "devices": [
            {
                "name": "n",
                "containerEdits": {
                    "env": ["A=b"],
                    "mounts": [
                        {
                            "hostPath": "/h",
                            "containerPath": "/c",
                            "options": ["ro", "nosuid", "nodev", "rbind"],
                        }
                    ],
                    "deviceNodes": [{"path": "/d", "hostPath": "/e", "permissions": "rw"}],
                },
            }
        ],
    }
    assert files.mounted_paths() == {"/h"}
