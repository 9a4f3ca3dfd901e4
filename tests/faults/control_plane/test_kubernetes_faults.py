"""FAULT-16..18: pods and nodes go half-way."""

import time

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, wait
from tests.faults.processes import crash, suspend_service
from tests.faults.stage import Faulty, Stage

STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
NODE = "node-0"


@pytest.mark.row(
    point="FAULT-16",
    fault="the pod is deleted between /filter and /bind",
    kind="error",
    answer="its slice is free immediately",
    promise="SAFE-3 LIVE-1",
)
def test_f16_a_pod_that_is_deleted_between_reserve_and_bind(
    faulty: Faulty, system: System, stage: Stage
) -> None:
    faulty.plan("pods.bind.before=delay:4*1")
    stage.come(1)
    wait(lambda: _states(system) == ["binding"], "the reservation to be in binding")

    system.delete("pod-0")
    deleted_s = time.monotonic()
    wait(lambda: not _states(system), "the slice to be free")
    freed_s = time.monotonic() - deleted_s
    stage.sizes_mib.clear()
    faulty.plan()

    stage.check()
    stage.report(freed_s)


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-17",
    fault="somebody else binds the pod to another node",
    kind="error",
    answer="the grant is given back; the pod does not start there",
    promise="SAFE-3 LIVE-1",
)
def test_f17_a_pod_that_somebody_else_binds_elsewhere(
    faulty: Faulty, system: System, stage: Stage
) -> None:
    faulty.plan("pods.bind.before=delay:4*1")
    stage.come(1)
    wait(lambda: _states(system) == ["binding"], "the reservation to be in binding")
    reserved = system.sql("SELECT node FROM allocations WHERE ended_at IS NULL")
    other = "node-1" if reserved == "node-0" else "node-0"

    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "pod-0"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": other},
    }
    answer = system.api.post("/api/v1/namespaces/default/pods/pod-0/binding", json=binding)
    assert answer.status_code == 201, answer.text
    bound_s = time.monotonic()
    wait(lambda: not _states(system), "the grant on the wrong node to be given back")
    freed_s = time.monotonic() - bound_s
    faulty.plan()

    pod = system.pod("pod-0")
    assert pod is not None
    # Without a grant it may not start, on the node of the other scheduler either (SAFE-3).
    wait(lambda: not _runs(system, "pod-0"), "the pod not to run")
    stage.sizes_mib.clear()
    system.delete("pod-0")
    stage.check()
    stage.report(freed_s)


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-18",
    fault="the node is cordoned half-way",
    kind="error",
    answer="bound pods run, no new one comes",
    promise="SAFE-1 LIVE-2",
)
def test_f18_a_node_that_is_cordoned_half_way(system: System, stage: Stage) -> None:
    stage.run_before(2)
    try:
        stage.come(2)
        _cordon(system, NODE, True)
        cordoned_s = time.monotonic()
        stage.settle()
        known = set(_names_on(system, NODE))
        stage.come(4)
        stage.settle()
        late = set(_names_on(system, NODE)) - known
        assert not late, f"placed on the cordoned node: {late}"
        recovered_s = time.monotonic() - cordoned_s
    finally:
        _cordon(system, NODE, False)
    stage.check()
    stage.report(recovered_s)


@pytest.mark.slow
@pytest.mark.emulator_only
@pytest.mark.row(
    point="FAULT-18",
    fault="the node is deleted while its pods run, then comes back",
    kind="error",
    answer="slices end as `released_unconfirmed`; the node is filled again",
    promise="SAFE-1 LIVE-1 LIVE-2",
)
def test_f18_a_node_that_is_deleted_while_its_pods_run(
    faulty: Faulty, system: System, stage: Stage
) -> None:
    stage.come(2, node=NODE)
    stage.settle()
    uids = [f"'{pod['metadata']['uid']}'" for pod in stage.mine()]

    # The machine does not come back: kubelet and agent silent, then the objects.
    with suspend_service(system, f"kubelet-{NODE}"), suspend_service(system, f"node-agent-{NODE}"):
        for name in stage.sizes_mib:
            system.force_delete(name)
        assert system.api.delete(f"/api/v1/nodes/{NODE}").status_code == 200
        deleted_s = time.monotonic()
        wait(lambda: not _states(system), "the slices of the lost node to be given back")
        freed_s = time.monotonic() - deleted_s
        ends = system.sql(
            f"SELECT DISTINCT state FROM allocations WHERE pod_uid IN ({', '.join(uids)})"
        )
        assert ends == "released_unconfirmed"
    stage.sizes_mib.clear()
    # The kubelet registers the node again, as a machine that came back does.
    crash(system, f"kubelet-{NODE}", f"node-agent-{NODE}")
    back = Stage(faulty, prefix="back")
    back.come(2, node=NODE)
    back.settle()
    back.check()
    stage.report(freed_s)


@pytest.mark.slow
@pytest.mark.emulator_only
@pytest.mark.row(
    point="FAULT-21",
    fault="kube-scheduler stops while binding and goes on late",
    kind="delay",
    answer="its late calls meet the row as it is",
    promise="SAFE-1..3 LIVE-2",
)
def test_f21_a_zombie_kube_scheduler_that_binds_late(
    faulty: Faulty, system: System, stage: Stage
) -> None:
    """The loop is stopped with pods reserved, and continues when others take it for dead."""
    faulty.plan("lock.acquire.before=delay:1*4")
    stage.come(4)
    wait(lambda: _states(system) != [], "a reservation")
    with suspend_service(system, "kube-scheduler"):
        time.sleep(3.0)
    faulty.plan()
    stage.recover()


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-11",
    fault="two pods for the last card",
    kind="duplicate",
    answer="one gets it; the other gets the reason and is tried again",
    promise="SAFE-1 LIVE-3",
)
def test_f11_two_pods_for_the_last_slot(system: System, stage: Stage) -> None:
    # Eight cards: seven whole ones are taken, two pods want the one that is left.
    whole = {"nvidia.com/gpu": 1}
    holders = [a_pod(f"holder-{n}", whole, command=("vgpu-probe", "--no-launch")) for n in range(7)]
    system.run(*holders)
    for name in ("one", "two"):
        pod = a_pod(name, whole, command=("vgpu-probe", "--no-launch"))
        assert system.create(pod).status_code == 201
    began_s = time.monotonic()

    wait(lambda: sum(_runs(system, name) for name in ("one", "two")) == 1, "one of them to run")
    [loser] = [name for name in ("one", "two") if not _runs(system, name)]
    assert system.wait_for_reason(loser)
    assert system.sql("SELECT max(used_slots), sum(used_slots) FROM devices") == "1|8"
    system.delete("holder-0")
    freed_s = time.monotonic()
    wait(lambda: _runs(system, loser), "the other to get what became free")
    stage.check()
    stage.report(
        time.monotonic() - freed_s,
        more=f"first after {freed_s - began_s:.1f} s",
    )


def _states(system: System) -> list[str]:
    return system.sql("SELECT state FROM allocations WHERE ended_at IS NULL").split()


def _runs(system: System, name: str) -> bool:
    statuses = (system.pod(name) or {"status": {}})["status"].get("containerStatuses") or []
    return any("running" in status.get("state", {}) for status in statuses)


def _names_on(system: System, node: str) -> list[str]:
    return [p["metadata"]["name"] for p in system.pods() if p["spec"].get("nodeName") == node]


def _cordon(system: System, node: str, wanted: bool) -> None:
    body: Json = {"spec": {"unschedulable": wanted}}
    answer = system.api.patch(f"/api/v1/nodes/{node}", json=body, headers=STRATEGIC)
    assert answer.status_code == 200, answer.text
