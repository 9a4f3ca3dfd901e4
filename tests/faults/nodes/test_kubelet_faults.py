"""FAULT-22..25, FAULT-27, FAULT-32: the kubelet dies, asks in another order, twice, past us.

The kubelet is ours here, whatever the API server; real ones are in `tests/e2e_node`.
"""

import time

import grpc
import pytest

from tests.e2e.system import MIB, System, a_pod, slice_of, wait
from tests.faults.nodes.node import (
    AGENT,
    KUBELET,
    NODE,
    allocate,
    home,
    ids_in_checkpoint,
    restart_container,
    statuses,
)
from tests.faults.processes import kill_services, suspend_service, take_down_service
from tests.faults.stage import Faulty, Stage, is_refused, since
from tests.waiting import Unhurried

SILENT_S = 3.0
"""Time for which a stopped process does not answer."""
REFUSED_S = 10.0
"""Allocate asks for a snapshot of the grants before it refuses, 2 s at most."""


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-22",
    fault="the kubelet",
    answer="running pods are untouched; the agent registers again, then pods come",
    promise="SAFE-2 SAFE-3 LIVE-2",
)
@pytest.mark.parametrize(
    "action",
    [
        pytest.param("kill", marks=pytest.mark.row(kind="kill")),
        pytest.param("delay", marks=pytest.mark.row(kind="delay")),
    ],
)
def test_f22_kubelet(system: System, stage: Stage, action: str) -> None:
    """Kill or stop the kubelet for seconds, while one pod runs and others come."""
    stage.run_before(1, node=NODE)

    if action == "kill":
        stage.come(1, node=NODE)
        with kill_services(system, KUBELET, alone=True):
            stage.come(2, node=NODE)
    else:
        with suspend_service(system, KUBELET):
            stage.come(3, node=NODE)
            time.sleep(SILENT_S)
    stage.recover()


@pytest.mark.row(
    point="FAULT-23",
    fault="Allocate in another order than bound (locks flushed)",
    kind="reorder",
    answer="a pod that got another's answer does not start and is ended",
    promise="SAFE-1..3",
)
def test_f23_allocate_in_another_order_than_bound(system: System, stage: Stage) -> None:
    """Without locks three pods are bound before any Allocate, in another order than granted."""
    back_s = _allocate_out_of_order(stage)
    stage.settle(replacing=True)

    stage.check()
    assert stage.replaced > 0, "nobody got another's answer: nothing was shown"
    shown = {reason for name in stage.sizes_mib for reason, _ in system.events(name)}
    assert {"DeviceAllocationFailed", "WrongDevices"} <= shown
    stage.report(since(back_s), more=f"{stage.replaced} pods ended and replaced")


def _allocate_out_of_order(stage: Stage) -> float:
    """Bind three pods before the kubelet sees one of them, the first to have its token last.

    Return the moment when the kubelet continues, by the monotonic clock.
    """
    system = stage.system
    stage.run_before(1, node=NODE)
    redis = system.redis()
    with suspend_service(system, KUBELET):
        stage.faulty.plan("pods.bind.before=delay:3*1")
        stage.come(3, node=NODE)
        wait(lambda: redis.flushall() and len(_list_bound(system)) == 4, "all to be bound")
        stage.faulty.plan()
    return time.monotonic()


@pytest.mark.row(
    point="FAULT-24",
    fault="Allocate called twice for the same ids",
    kind="duplicate",
    answer="the same answer, nothing changed",
    promise="SAFE-2",
)
def test_f24_allocate_called_twice(system: System, stage: Stage) -> None:
    """The kubelet forgot our answer and asks again for the same ids."""
    stage.come(1, node=NODE)
    stage.settle()
    ids = ids_in_checkpoint(system)

    began_s = time.monotonic()
    first, again = allocate(system, ids), allocate(system, ids)

    assert first == again
    assert {response.envs["NVIDIA_VISIBLE_DEVICES"] for response in again.container_responses} == {
        system.sql(
            "SELECT device_uuid FROM allocation_devices x JOIN allocations a"
            " ON a.id = x.allocation_id WHERE a.ended_at IS NULL"
        )
    }
    stage.check()
    stage.report(since(began_s))


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-25",
    fault="Allocate for ids without a grant; a pod that bypassed the scheduler",
    kind="error",
    answer="refused with the reason; no allocation is made",
    promise="SAFE-3 SAFE-5",
)
def test_f25_allocate_for_a_pod_that_nobody_knows(system: System, stage: Stage) -> None:
    """Ids that no grant explains, and a pod that was put on the node past the scheduler."""
    stage.run_before(1, node=NODE)
    held = ids_in_checkpoint(system)
    rows = system.sql("SELECT count(*) FROM allocations")
    unknown = next(f"{i.rpartition('-')[0]}-9" for i in held)

    began_s, asking = time.monotonic(), Unhurried()
    with pytest.raises(grpc.RpcError) as refused:
        allocate(system, [unknown])
    assert asking.seconds < REFUSED_S
    assert "grant" in str(refused.value.details())

    pod = a_pod("bypass", slice_of(1024, 5), command=("vgpu-probe", "--no-launch"))
    pod["spec"]["nodeName"] = NODE
    answer = system.create(pod)
    assert (answer.status_code, "node assigned" in answer.text) == (403, True)
    assert system.sql("SELECT count(*) FROM allocations") == rows
    stage.check()
    stage.report(since(began_s), more="refused, no allocation made")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-27",
    fault="the plugin's socket is removed",
    kind="error",
    answer="served and registered again",
    promise="LIVE-2",
)
def test_f27_plugin_socket_removed(system: System, stage: Stage) -> None:
    """Remove the socket in the kubelet's directory; the agent serves and registers again."""
    stage.run_before(1, node=NODE)
    socket = home(system) / "kubelet" / "device-plugins" / "nvidia-gpu.sock"

    socket.unlink()
    removed_s = time.monotonic()
    stage.come(3, node=NODE)
    stage.settle()

    assert socket.exists()
    stage.check()
    stage.report(since(removed_s))


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-26",
    fault="the agent dies between its report that it is ready and Allocate",
    kind="kill",
    answer="the kubelet fails the pod; its slice comes back with the reason",
    promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2",
)
def test_f26_agent_away_at_allocate(faulty: Faulty, system: System) -> None:
    """The kubelet finds no plugin at the endpoint when the pod comes."""
    stage = Stage(faulty, may_refuse=1)
    stage.run_before(1, node=NODE)
    before = _hits(system, "pods.bind.before")
    faulty.plan("pods.bind.before=delay:3*1")
    stage.come(1, node=NODE)
    wait(lambda: _hits(system, "pods.bind.before") > before, "the binding to be under way")

    with take_down_service(system, AGENT):
        wait(lambda: is_refused(stage.mine()[-1]), "the kubelet to refuse the pod")
        refused_s = time.monotonic()
        uid = stage.mine()[-1]["metadata"]["uid"]
        row = f"SELECT state || ': ' || reason FROM allocations WHERE pod_uid = '{uid}'"
        wait(lambda: system.sql(row).startswith("failed: "), "its slice to come back")
        freed_s = since(refused_s)
        reason = system.sql(row)
    assert "UnexpectedAdmissionError" in reason, reason
    back_s = time.monotonic()
    stage.come(2, node=NODE)
    stage.recover(since_s=back_s, more=f"its slice was free after {freed_s:.1f} s: {reason}")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-32",
    fault="a container's restart, and an init container",
    kind="error",
    answer="checked before every start",
    promise="SAFE-2 SAFE-3",
)
def test_f32_container_restart_and_init_container(system: System, stage: Stage) -> None:
    """Each start is checked again: init, app, and the app's second run."""
    stage.run_before(1, node=NODE)
    pod = a_pod(
        "again",
        slice_of(2048, 5),
        command=("vgpu-probe", "--no-launch"),
        init=slice_of(1024, 5),
    )
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": NODE}
    system.run(pod)

    killed_s = time.monotonic()
    restart_container(system, "again")
    stage.settle()
    recovered_s = since(killed_s)

    found = system.pod("again")
    assert found is not None
    for container, size_mib in (("init", 1024), ("cuda", 2048)):
        event = "finished" if container == "init" else "running"
        lines = (
            system.log(found, container)
            if container == "init"
            else system.wait_for_log(found, container, event)
        )
        seen = {line["total_bytes"] // MIB for line in lines if line["event"] == "device"}
        assert seen == {size_mib}
    assert [status["restartCount"] for status in statuses(found)] == [1]
    stage.check()
    stage.report(recovered_s)


def _hits(system: System, point: str) -> int:
    """Number of times the scheduler has reached a fault at that point."""
    log = (system.folder / "logs" / "scheduler.log").read_text()
    return sum('"Hit a failpoint"' in line and f'"{point}"' in line for line in log.splitlines())


def _list_bound(system: System) -> list[str]:
    return [p["metadata"]["name"] for p in system.pods() if p["spec"].get("nodeName")]
