"""Device plugin v1beta1 as a kubelet sees it, over gRPC, against the built package.

The agent runs from the wheel, not from the sources. It meets the faults of a kubelet's life:
restarts of either side, calls that are repeated, concurrent or in another order, ids that are not
ours, a kill between grant and answer, cards that flap.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hami_node_agent.adapters.state_file import StateFile
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.process.shutdown import end

from tests.integration.node_agent.control import Control, container, grant, share
from tests.integration.node_agent.machine import (
    CARDS,
    REPOSITORY,
    AgentProcess,
    Kubelet,
    Machine,
    limits_of,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native

A_0, A_1, B_0 = f"{CARDS[0]}-0", f"{CARDS[0]}-1", f"{CARDS[1]}-0"
ALL_IDS = {f"{card}-{number}" for card in CARDS for number in range(10)}
STRANGE = "GPU-cccccccc-0000-0000-0000-000000000003-0"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the node-agent as it is installed from its wheel."""
    folder = tmp_path_factory.mktemp("package")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    # Copies: the build writes beside the sources otherwise. The version is read two folders above.
    sources = folder / "services" / "node-agent"
    shutil.copytree(REPOSITORY / "services" / "node-agent", sources)
    shutil.copy(REPOSITORY / "VERSION", folder)
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sources],
        check=True,
        timeout=PATIENCE_S,
    )
    [wheel] = folder.glob("*.whl")
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", folder / "installed", wheel],
        check=True,
        timeout=PATIENCE_S,
    )
    return folder / "installed"


@pytest.fixture
async def agent(
    package: Path, machine: Machine, kubelet: Kubelet, control: Control
) -> AsyncIterator[AgentProcess]:
    """The agent of the wheel, registered and with the bus."""
    machine.extra["PYTHONPATH"] = str(package)
    machine.extra["HAMI_FAILPOINTS_FILE"] = str(machine.root / "faults")
    (machine.root / "faults").touch()
    with AgentProcess(machine) as agent:
        await agent.ready()
        yield agent


def read_devices(answer: Any) -> dict[str, str]:
    return {device.ID: device.health for device in answer.devices}


async def expect_refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def wait_until_known(kubelet: Kubelet, *cards: str) -> None:
    """Wait until the agent prefers the cards of a grant on them."""
    wanted = [[f"{card}-0" for card in cards]]
    async with asyncio.timeout(PATIENCE_S):
        while await kubelet.prefer(len(cards), *(f"{card}-0" for card in cards)) != wanted:
            await asyncio.sleep(0.02)


def test_it_is_the_package_that_runs(package: Path, machine: Machine) -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import hami_node_agent; print(hami_node_agent.__file__)"],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )

    assert Path(found.stdout.strip()).is_relative_to(package)


async def test_options_and_devices_are_advertised_at_once(
    agent: AgentProcess, kubelet: Kubelet
) -> None:
    async with kubelet.plugin() as plugin:
        options = await plugin.GetDevicePluginOptions(api.Empty(), timeout=PATIENCE_S)
        first = await plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S).read()

    assert (options.pre_start_required, options.get_preferred_allocation_available) == (True, True)
    assert read_devices(first) == dict.fromkeys(ALL_IDS, "Healthy")


async def test_two_kubelets_that_overlap_both_learn_of_health(
    agent: AgentProcess, kubelet: Kubelet, machine: Machine
) -> None:
    async with kubelet.plugin() as before, kubelet.plugin() as after:
        streams = [p.ListAndWatch(api.Empty(), timeout=PATIENCE_S) for p in (before, after)]
        for stream in streams:
            assert len((await stream.read()).devices) == 20

        machine.control("lose", "1")

        for stream in streams:
            found = read_devices(await stream.read())
            assert {i for i, health in found.items() if health == "Unhealthy"} == {
                f"{CARDS[1]}-{number}" for number in range(10)
            }


@pytest.fixture
def long_quiet(machine: Machine) -> None:
    """A card that flaps never has that much time, also where each of its changes takes seconds."""
    machine.extra["HAMI_NODE_AGENT_XID_QUIET_S"] = "8"


@pytest.mark.usefixtures("long_quiet")
async def test_a_flapping_card_stays_sick_and_comes_back_once(
    agent: AgentProcess, kubelet: Kubelet, machine: Machine
) -> None:
    async with kubelet.plugin() as plugin:
        stream = plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S)
        await stream.read()
        machine.control("lose", "0")
        assert read_devices(await stream.read())[A_0] == "Unhealthy"
        # A probe may be sooner than the event, from which on the card has to be quiet.
        event = f'hami_node_agent_xid_events_total{{counts="true",device_uuid="{CARDS[0]}"'
        await eventually(lambda: event in agent.get("/metrics")[1], "the XID event")
        lists: list[dict[str, str]] = []

        async def read() -> None:
            while True:
                lists.append(read_devices(await stream.read()))

        reading = asyncio.create_task(read())
        for _ in range(6):
            await asyncio.to_thread(machine.control, "restore", "0")
            await asyncio.to_thread(machine.control, "lose", "0")
        assert {found[A_0] for found in lists} <= {"Unhealthy"}
        await asyncio.to_thread(machine.control, "restore", "0")

        healthy = dict.fromkeys(ALL_IDS, "Healthy")
        await eventually(lambda: reading.done() or healthy in lists, "the card to be back")
        assert [found[A_0] for found in lists].count("Healthy") == 1
        await end([reading])


@pytest.mark.parametrize("ids", [(STRANGE,), (A_0, STRANGE), ("nonsense",)])
async def test_ids_that_are_none_of_ours_are_refused_and_cost_no_grant(
    agent: AgentProcess, kubelet: Kubelet, control: Control, ids: tuple[str, ...]
) -> None:
    await control.announce(grant("a"))
    await wait_until_known(kubelet, CARDS[0])

    error = await expect_refusal(kubelet.allocate("a", "main", *ids))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "not devices of this resource" in (error.details() or "")
    assert limits_of(await kubelet.allocate("a", "main", A_0))


async def test_one_call_for_two_containers_is_answered_in_order_and_whole(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    two = (container(share(), name="one"), container(share(1, 1024), name="two", index=1))
    await control.announce(grant("a", *two))
    await wait_until_known(kubelet, CARDS[0])
    wanted = [api.ContainerAllocateRequest(devices_ids=[i]) for i in (A_0, B_0)]

    async with kubelet.plugin() as plugin:
        request = api.AllocateRequest(container_requests=wanted)
        answer = await plugin.Allocate(request, timeout=PATIENCE_S)
        nobody = await plugin.Allocate(api.AllocateRequest(), timeout=PATIENCE_S)

    assert [dict(c.envs)["CUDA_DEVICE_MEMORY_LIMIT_0"] for c in answer.container_responses] == [
        "4096m",
        "1024m",
    ]
    assert not nobody.container_responses


async def test_the_same_call_twice_at_once_has_one_answer(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    two = (container(share(), name="one"), container(share(1), name="two", index=1))
    await control.announce(grant("a", *two))
    await wait_until_known(kubelet, CARDS[0])

    first, second = await asyncio.gather(
        kubelet.allocate("a", "one", A_0), kubelet.allocate("a", "one", A_0)
    )

    assert first == second
    assert len(StateFile(machine.state).load().records) == 1


async def test_a_start_before_its_allocate_waits_and_other_ids_than_preferred_are_right(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    await control.announce(grant("a"))
    await wait_until_known(kubelet, CARDS[0])

    early = await expect_refusal(kubelet.prestart(A_0))
    answer = await kubelet.allocate("a", "main", A_1)
    await kubelet.prestart(A_1)
    await kubelet.prestart(A_1)

    assert early.code() is grpc.StatusCode.UNAVAILABLE
    assert "no container with its ids" in (early.details() or "")
    assert f"device {CARDS[0]} " in limits_of(answer)


async def test_a_call_before_its_grant_is_refused_and_does_not_hold_the_next_one(
    agent: AgentProcess, kubelet: Kubelet, control: Control
) -> None:
    early = await expect_refusal(kubelet.allocate("a", "main", A_0))
    await control.announce(grant("a"))
    await wait_until_known(kubelet, CARDS[0])

    answer = await kubelet.allocate("a", "main", A_0)

    assert early.code() is grpc.StatusCode.NOT_FOUND
    assert f"device {CARDS[0]} " in limits_of(answer)


@pytest.mark.parametrize(
    "point", ["node_files.write_limits.after", "node_state.save.before", "node_state.save.after"]
)
async def test_a_kill_between_grant_and_answer_leaves_one_answer_to_the_next_call(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, point: str
) -> None:
    await control.announce(grant("a"))
    await wait_until_known(kubelet, CARDS[0])
    (machine.root / "faults").write_text(f"{point}=kill\n")

    lost = await expect_refusal(kubelet.allocate("a", "main", A_0))
    assert await asyncio.to_thread(agent.wait) == -signal.SIGKILL
    await agent.start_again()
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)

    assert lost.code() is grpc.StatusCode.UNAVAILABLE
    assert f"device {CARDS[0]} " in limits_of(answer)
    [record] = StateFile(machine.state).load().records.values()
    assert (record.pod_uid, record.device_ids) == ("a", {A_0})


@pytest.mark.parametrize("who", ["agent", "kubelet", "socket"])
async def test_after_any_restart_running_containers_may_start_again(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, who: str
) -> None:
    await control.announce(grant("a"), grant("b", container(share(1)), token=2))
    await wait_until_known(kubelet, CARDS[0])
    first = await kubelet.allocate("a", "main", A_0)

    if who == "agent":
        agent.stop(signal.SIGKILL)
        agent.start()
    elif who == "kubelet":
        await kubelet.stop()
        await kubelet.start()
    else:
        (machine.sockets / "nvidia-gpu.sock").unlink()
    await eventually(lambda: len(kubelet.registrations) == 2)
    await agent.ready()

    await kubelet.prestart(A_0)
    assert f"device {CARDS[0]} " in limits_of(first)
    second = await kubelet.allocate("b", "main", B_0)
    assert f"device {CARDS[1]} " in limits_of(second)
    async with kubelet.plugin() as plugin:
        listed = await plugin.ListAndWatch(api.Empty(), timeout=PATIENCE_S).read()
    assert set(read_devices(listed)) == ALL_IDS


async def test_a_socket_that_is_removed_while_registering_is_served_again(
    agent: AgentProcess, kubelet: Kubelet, machine: Machine
) -> None:
    socket = machine.sockets / "nvidia-gpu.sock"

    def remove_once() -> None:
        if len(kubelet.registrations) == 2:
            socket.unlink()

    kubelet.while_registering = remove_once
    await eventually(socket.exists)
    socket.unlink()

    await eventually(lambda: len(kubelet.registrations) == 3)
    await agent.ready()
    assert await kubelet.prefer(1, A_0) == []


async def test_a_socket_that_keeps_vanishing_ends_within_the_crash_budget_or_is_served_again(
    agent: AgentProcess, kubelet: Kubelet, machine: Machine
) -> None:
    socket = machine.sockets / "nvidia-gpu.sock"
    for number in range(2, 6):
        await eventually(socket.exists)
        socket.unlink()
        await eventually(lambda wanted=number: len(kubelet.registrations) >= wanted)

    await eventually(socket.exists)
    await agent.ready()
    assert await kubelet.prefer(1, A_0) == []
