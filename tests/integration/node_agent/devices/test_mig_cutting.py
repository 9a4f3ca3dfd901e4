"""MIG instances made for grants, over the stand-in driver's NVML and the kubelet's sockets."""

import json
import signal
import subprocess
from typing import Any

import grpc
import pytest
from hamicommon.grants.grant import Grant, GrantedShare
from kubelocal.kubelet.devices.cdi import edits_of

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, container, grant
from tests.integration.node_agent.machine import (
    CARDS,
    FAKEGPU,
    AgentProcess,
    Kubelet,
    Machine,
    mounts_of,
)
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.native

A_0, A_1, A_2 = (f"{CARDS[0]}-{number}" for number in range(3))
ONE, TWO, SEVEN = ("1g.10gb", 1), ("2g.20gb", 2), ("7g.79gb", 8)
FOREIGN = "MIG-f0f0f0f0-0000-0000-0000-000000000001"


@pytest.fixture
def machine(machine: Machine) -> Machine:
    """Both cards in MIG mode."""
    machine.extra["HAMI_NODE_AGENT_OPERATING_MODE"] = "mig"
    machine.extra["HAMI_FAILPOINTS_FILE"] = str(machine.root / "faults")
    cut(machine, [], [])
    return machine


def cut(machine: Machine, *cards: list[dict[str, Any]] | None) -> None:
    """Set the MIG instances with which the driver begins."""
    file = machine.root / "fakegpu.json"
    described = json.loads(file.read_text())
    for card, instances in zip(described["devices"], cards, strict=True):
        card.pop("mig", None)
        if instances is not None:
            card["mig"] = instances
    file.write_text(json.dumps(described))


def part(profile: tuple[str, int], start: int, card: int = 0) -> GrantedShare:
    """A slice as the scheduler reserves it."""
    name, size = profile
    return GrantedShare(
        uuid=CARDS[card],
        vendor="NVIDIA",
        memory_mib=9728,
        core_percent=15,
        detail={"profile": name, "placement": {"start": start, "size": size}},
    )


def of_pod(pod: str, *parts: GrantedShare, token: int = 1, name: str = "") -> Grant:
    made = grant(pod, container(*parts), token=token)
    return made.model_copy(update={"pod_name": name}) if name else made


def list_instances(machine: Machine, card: int = 0) -> list[dict[str, Any]]:
    """The GPU instances that the driver has."""
    done = subprocess.run(
        [FAKEGPU / "fakegpu-ctl", "show"],
        env={"FAKEGPU_CONFIG": str(machine.root / "fakegpu.json")},
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return list(json.loads(done.stdout)["cards"][card]["mig"])


def instances(machine: Machine, card: int = 0) -> dict[int, list[str]]:
    """Start -> uuids of the instances that the driver has."""
    return {each["start"]: each["devices"] for each in list_instances(machine, card)}


def number_at(machine: Machine, start: int) -> str:
    """The GPU instance there."""
    return str(
        next(each["gpu_instance"] for each in list_instances(machine) if each["start"] == start)
    )


async def test_a_container_gets_its_instances_and_after_it_another_pod_the_whole_card(
    api_pods: ApiPods, agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    [first, _] = (await eventually(lambda: control.inventories))[-1].devices
    assert (first.mode, first.slots, first.memory_mib, first.core_percent) == (
        "mig",
        7,
        81920,
        100,
    )
    assert [(p.name, p.memory_mib, p.core_percent) for p in first.mig_profiles] == [
        ("1g.10gb", 9728, 15),
        ("2g.20gb", 19968, 29),
        ("3g.40gb", 40448, 43),
        ("7g.79gb", 81408, 100),
    ]
    await api_pods.create("a", "b")
    a, b = api_pods.uids["a"], api_pods.uids["b"]
    await control.announce(of_pod(a, part(ONE, 6), part(TWO, 0), name="a"))
    kubelet.pods[a] = "a"

    answer = await kubelet.allocate(a, "main", A_0, A_1)

    made = instances(machine)
    assert sorted(made) == [0, 6]
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": f"{made[6][0]},{made[0][0]}"}
    assert set(mounts_of(answer)) == {"/etc/hami"}
    [report] = await eventually(lambda: control.reports_of("allocated"))
    assert [(i.container, i.device_index, i.uuid, i.mig_uuid) for i in report.instances] == [
        ("main", 0, CARDS[0], made[6][0]),
        ("main", 1, CARDS[0], made[0][0]),
    ]
    assert [str(i.gpu_instance_id) for i in report.instances] == [
        number_at(machine, 6),
        number_at(machine, 0),
    ]
    await kubelet.prestart(A_0, A_1)
    metrics = await eventually(lambda: _with(agent, "hami_mig_device_info{", made[0][0]))
    assert 'profile="2g.20gb"' in metrics
    of_card = f'device_uuid="{CARDS[0]}"'
    await eventually(
        lambda: _with(agent, "hami_node_agent_mig_instances{", of_card, '"held"', "} 2.0")
    )

    control.live.clear()
    machine.control("mig-busy", "0", number_at(machine, 6))
    await api_pods.delete("a")
    kubelet.forget(a)
    await eventually(lambda: sorted(instances(machine)) == [6])
    await eventually(lambda: _with(agent, "hami_node_agent_mig_changes_total", 'result="busy"'))
    machine.control("mig-idle", "0", number_at(machine, 6))
    await control.announce(of_pod(b, part(SEVEN, 0), token=2, name="b"))
    kubelet.pods[b] = "b"
    answer = await kubelet.allocate(b, "main", A_2)
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": instances(machine)[0][0]}


def _with(agent: AgentProcess, *parts: str) -> str:
    """The metrics, if they have one line with all parts."""
    text = agent.get("/metrics")[1]
    return text if any(all(w in line for w in parts) for line in text.splitlines()) else ""


@pytest.mark.parametrize("point", ["make.before", "make.after"])
async def test_a_kill_between_intent_and_answer_leaves_no_instance_behind(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine, point: str
) -> None:
    faults = machine.root / "faults"
    faults.write_text(f"node_mig.{point}=kill\n")
    await control.announce(of_pod("a", part(TWO, 2)))
    with pytest.raises(grpc.aio.AioRpcError):
        await kubelet.allocate("a", "main", A_0)
    assert agent.wait() == -signal.SIGKILL
    assert sorted(instances(machine)) == ([2] if point == "make.after" else [])

    await agent.start_again()
    assert instances(machine) == {}
    answer = await kubelet.allocate("a", "main", A_0)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == instances(machine)[2][0]


async def test_a_restart_keeps_what_is_held_and_leaves_alone_what_others_made(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    described = {"uuid": FOREIGN, "gpu_slices": 3, "memory_mib": 40448, "gpu_instance": 2}
    cut(machine, [{**described, "start": 4}], None)
    with AgentProcess(machine) as agent:
        await agent.ready()
        devices = (await eventually(lambda: control.inventories))[-1].devices
        assert {p.name: p.placements for p in devices[0].mig_profiles} == {
            "1g.10gb": ((0, 1), (1, 1), (2, 1), (3, 1)),
            "2g.20gb": ((0, 2), (2, 2)),
            "3g.40gb": ((0, 4),),
        }
        assert "Keeping a MIG instance of another owner" in agent.log
        assert [device.uuid for device in devices] == list(CARDS), "put into MIG mode by us"
        await control.announce(of_pod("a", part(ONE, 3)))
        answer = await kubelet.allocate("a", "main", A_0)
        await eventually(lambda: control.reports_of("allocated"))

        agent.stop()
        await agent.start_again()

        assert instances(machine) == {3: [answer.envs["NVIDIA_VISIBLE_DEVICES"]], 4: [FOREIGN]}
        await kubelet.prestart(A_0)

        machine.control("mig-clear", "0")
        with pytest.raises(grpc.aio.AioRpcError, match=r"is gone .* delete the pod"):
            await kubelet.prestart(A_0)
        await eventually(lambda: control.reports_of("failed"))
        await eventually(lambda: instances(machine) == {})


IMPOSSIBLE = {
    "GPU instance 2 at 4.4, which another program created, occupies the place": part(ONE, 5),
    "the card has no such profile; its profiles: 1g.10gb": part(("5g.60gb", 4), 0),
    r"the profile can't start there; possible starts: 0\+2, 2\+2, 4\+2": part(TWO, 1),
    "has no MIG profile and place": GrantedShare(
        uuid=CARDS[0], vendor="NVIDIA", memory_mib=1024, core_percent=5
    ),
    "NVML: create a MIG instance: Unknown Error": part(ONE, 0),
}


async def test_an_instance_that_cannot_be_made_is_a_clear_error_and_the_next_is_made(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    described = {"uuid": FOREIGN, "gpu_slices": 3, "memory_mib": 40448, "gpu_instance": 2}
    cut(machine, [{**described, "start": 4}], [])
    file = machine.root / "fakegpu.json"
    fault = {"call": "nvmlGpuInstanceCreateComputeInstance", "result": 999}
    file.write_text(json.dumps({**json.loads(file.read_text()), "faults": [fault]}))
    with AgentProcess(machine) as agent:
        await agent.ready()
        for number, (reason, wanted) in enumerate(IMPOSSIBLE.items()):
            made = of_pod(f"pod-{number}", wanted, token=number + 1)
            await control.announce(made)
            with pytest.raises(grpc.aio.AioRpcError, match=reason):
                await kubelet.allocate(f"pod-{number}", "main", A_0)
            await control.withdraw(made)
            await control.until_all_is_consumed()
        await eventually(lambda: len(control.reports_of("failed")) == len(IMPOSSIBLE))
        await eventually(lambda: instances(machine) == {4: [FOREIGN]})
        await control.announce(of_pod("good", part(ONE, 0), token=9))
        await kubelet.allocate("good", "main", A_0)
        assert sorted(instances(machine)) == [0, 4]

        machine.control("lose", "1")
        await control.announce(of_pod("beside", part(ONE, 1), token=10))
        await kubelet.allocate("beside", "main", A_1)
        assert sorted(instances(machine)) == [0, 1, 4], "a lost card holds up no other"


async def test_an_init_container_of_another_size_at_that_place_is_named_with_the_way_out(
    agent: AgentProcess, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    init = container(part(TWO, 0), name="prepare", index=0, role="init")
    await control.announce(grant("a", init, container(part(ONE, 0), index=1)))
    await kubelet.allocate("a", "prepare", A_0)

    with pytest.raises(
        grpc.aio.AioRpcError,
        match=r"container prepare of the same pod holds.*give these containers equal",
    ):
        await kubelet.allocate("a", "main", A_1)

    assert sorted(instances(machine)) == [0]


async def test_late_binding_names_the_instance_in_the_cdi_file(
    machine: Machine, kubelet: Kubelet, control: Control
) -> None:
    machine.extra["HAMI_NODE_AGENT_BINDING"] = "late"
    machine.extra["HAMI_NODE_AGENT_DRAIN_S"] = "0"
    with AgentProcess(machine) as agent:
        await agent.ready()
        answer = await kubelet.allocate("a", "main", A_0)
        assert instances(machine) == {}
        await control.announce(of_pod("a", part(TWO, 4)))
        await kubelet.prestart(A_0)
        [device] = answer.cdi_devices
        edits = edits_of([device.name], machine.cdi)
        assert dict(edits.envs) == {"NVIDIA_VISIBLE_DEVICES": instances(machine)[4][0]}
        await kubelet.prestart(A_0)
        machine.control("mig-clear", "0")
        with pytest.raises(grpc.aio.AioRpcError, match="is gone"):
            await kubelet.prestart(A_0)


async def test_what_cannot_go_with_instances_on_demand_ends_in_one_clear_line(
    machine: Machine, kubelet: Kubelet
) -> None:
    machine.extra["MIG_STRATEGY"] = "mixed"
    agent = AgentProcess(machine)
    agent.start()
    assert agent.wait() == 1
    assert "operating_mode mig creates its own: set only one of them" in agent.log.splitlines()[-1]
