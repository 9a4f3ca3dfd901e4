"""FAULT-28..30, FAULT-33, a process that outlives its pod: power, checkpoints, cards and disk."""

import time

import pytest

from tests.e2e.system import System, a_pod, wait
from tests.faults.nodes.node import (
    AGENT,
    KUBELET,
    NODE,
    fakegpu,
    home,
    no_room,
    restart_container,
    statuses,
)
from tests.faults.processes import crash, kill_services, programs_of, suspend_service
from tests.faults.stage import Faulty, Stage, is_running, since


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-28",
    fault="the node loses its power and its tmpfs",
    kind="kill",
    answer="containers start again with their own limits",
    promise="SAFE-2 SAFE-3 LIVE-2",
)
def test_f28_reboot(system: System, stage: Stage) -> None:
    """Power gone: kubelet, agent, containers; what lies on a tmpfs is lost, the disk is not."""
    stage.come(2, node=NODE)
    stage.settle()

    with kill_services(system, KUBELET, AGENT):
        (home(system) / "fakegpu.state").unlink(missing_ok=True)
    back_s = time.monotonic()
    stage.come(2, node=NODE)
    stage.settle()

    stage.check()
    restarted = [status["restartCount"] for pod in stage.mine() for status in statuses(pod)]
    stage.report(since(back_s), more=f"restarts {restarted}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "which",
    [
        pytest.param(
            "checkpoint",
            marks=pytest.mark.row(
                fault="the kubelet's checkpoint is half a file",
                answer="PodResources is enough until the kubelet writes a whole one",
            ),
        ),
        pytest.param(
            "state",
            marks=pytest.mark.row(
                fault="the agent's state is half a file",
                answer="moved away; checkpoint and ledger have enough to go on",
            ),
        ),
    ],
)
@pytest.mark.row(point="FAULT-29", kind="error", promise="SAFE-2 SAFE-3 LIVE-2")
def test_f29_corrupt_checkpoints(system: System, stage: Stage, which: str) -> None:
    """Half a file: the kubelet's checkpoint under a living kubelet, or the agent's own state."""
    stage.run_before(2, node=NODE)
    if which == "checkpoint":
        file = home(system) / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint"
    else:
        file = home(system) / "agent" / "state.json"
    text = file.read_bytes()

    file.write_bytes(text[: len(text) // 2])
    crash(system, AGENT)
    back_s = time.monotonic()
    stage.come(2, node=NODE)
    restart_container(system, "pod-0")
    stage.recover(since_s=back_s, restarted={"pod-0"})


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-30",
    kind="error",
    answer="nothing new is placed on it; nothing is ended",
    promise="SAFE-1 LIVE-2",
)
@pytest.mark.parametrize(
    "what",
    [
        pytest.param("xid", marks=pytest.mark.row(fault="a card reports XID 79")),
        pytest.param("lose", marks=pytest.mark.row(fault="a card falls off the bus")),
    ],
)
def test_f30_sick_card(system: System, stage: Stage, what: str) -> None:
    """A card reports XID 79, or falls off the bus: nothing new is placed on it, nothing ended."""
    stage.run_before(1, node=NODE)
    uuid = system.sql("SELECT uuid FROM devices WHERE used_slots > 0")

    fakegpu(system, what, uuid, *(["79"] if what == "xid" else []))
    began_s = time.monotonic()
    try:
        wait(
            lambda: system.sql(f"SELECT healthy FROM devices WHERE uuid = '{uuid}'") == "f",
            "the ledger to know that the card is sick",
        )
        known_s = since(began_s)
        stage.come(3, node=NODE)
        stage.settle()
        assert system.sql(f"SELECT used_slots FROM devices WHERE uuid = '{uuid}'") == "1"
        stage.check(blind={"pod-0"})
    finally:
        if what == "lose":
            fakegpu(system, "restore", uuid)
        crash(system, AGENT)  # an XID is forgotten after five minutes, or by a new agent
    wait(
        lambda: system.sql(f"SELECT healthy FROM devices WHERE uuid = '{uuid}'") == "t",
        "the card to be well again",
    )
    stage.report(known_s, more="the time until the ledger knew")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-33",
    fault="no room on the agent's disk",
    kind="error",
    answer="Allocate fails with the reason; the kubelet fails that pod, its slice comes back",
    promise="SAFE-3 LIVE-1",
)
def test_f33_disk_full(faulty: Faulty, system: System) -> None:
    """No limits file can be written: no container starts, and all do once there is room."""
    stage = Stage(faulty, may_refuse=1)
    stage.run_before(1, node=NODE)
    with no_room(system):
        stage.come(1, node=NODE)
        # The kubelet gives a pod up whose Allocate fails; its controller would make another.
        wait(
            lambda: any(pod["status"].get("phase") == "Failed" for pod in stage.mine()),
            "the kubelet to refuse the pod",
        )
        assert sum(is_running(pod) for pod in stage.mine()) == 1
    room_s = time.monotonic()
    stage.come(2, node=NODE)
    stage.recover(since_s=room_s)


@pytest.mark.slow
@pytest.mark.row(
    point="SAFE-1",
    fault="a force-deleted pod whose process lives on",
    kind="delay",
    answer="its slice is kept until the process is gone",
    promise="SAFE-1",
)
def test_force_deleted_pod_with_a_live_process(system: System, stage: Stage) -> None:
    """A process without its pod's object holds the card: its slice stays granted until it ends."""
    whole = {"nvidia.com/gpu": 4}
    system.run(
        *(a_pod(f"holder-{n}", whole, command=("vgpu-probe", "--no-launch")) for n in (0, 1))
    )
    victim = next(p for p in system.pods() if p["spec"]["nodeName"] == NODE)
    name = victim["metadata"]["name"]

    with suspend_service(system, KUBELET):
        system.force_delete(name)
        stage.come(1)
        deadline_s = time.monotonic() + 6.0
        while time.monotonic() < deadline_s:
            assert system.sql("SELECT sum(used_slots) FROM devices") == "8"
            assert not any(pod["spec"].get("nodeName") for pod in stage.mine())
            time.sleep(0.2)
        assert programs_of(victim)
    continued_s = time.monotonic()
    stage.settle()

    assert not programs_of(victim)
    stage.check()
    stage.report(since(continued_s), more="slice kept for 6 s while the process lived")
