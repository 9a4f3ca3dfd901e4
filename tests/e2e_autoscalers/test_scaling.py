"""Slices bring nodes and let them go, with the real Cluster Autoscaler and Karpenter."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import System, a_pod, hamictl, wait
from tests.e2e_autoscalers.conftest import Rig
from tests.e2e_autoscalers.pools import (
    CARD_MIB,
    CARDS,
    MERGE,
    NAMES,
    POOL,
    cluster_autoscaler,
    create,
    nodes_of,
)

pytestmark = pytest.mark.e2e

MIXED = (30_000, 30_000, 30_000, 30_000, 10_000, 20_000, 20_000)
"""Seven slices: five cards' worth of 40,000 MiB, and a node has four."""


def slices(*memories: int) -> list[Json]:
    return [
        a_pod(f"s{number}", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory})
        for number, memory in enumerate(memories)
    ]


def run(system: System, pods: list[Json]) -> float:
    """Create the pods and return how long it took until all of them run."""
    began = time.monotonic()
    for pod in pods:
        answer = system.create(pod)
        assert answer.status_code == 201, answer.text
    for pod in pods:
        system.wait_for_phase(pod["metadata"]["name"], "Running", timeout_s=120)
    return time.monotonic() - began


def let_go(system: System) -> float:
    """Delete the pods and return how long it took until the last node is gone."""
    began = time.monotonic()
    system.delete_all()
    wait(lambda: not nodes_of(system) or None, "the nodes to go", timeout_s=180)
    return time.monotonic() - began


@pytest.mark.parametrize("autoscaler", NAMES)
def test_seven_pods_of_mixed_sizes_bring_two_nodes_and_let_them_go(
    rig: Rig, autoscaler: str
) -> None:
    with rig(autoscaler) as (system, _):
        for turn in ("first", "second"):
            up_s = run(system, slices(*MIXED))
            assert len(nodes_of(system)) == 2
            assert system.sql(
                "SELECT string_agg(state || number, ' ' ORDER BY id) FROM scale_wishes"
            ).endswith("arrived1 arrived2")
            assert hamictl(system.folder, "scale", "status").count("arrived") >= 2
            system.check_invariants()
            down_s = let_go(system)
            measured.note(
                f"{autoscaler}, {turn} time: 7 pods run after {up_s:.1f} s, "
                f"0 nodes {down_s:.1f} s after their end"
            )


GPU, MEM, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
KINDS: dict[str, Json] = {
    "whole": a_pod("whole", {GPU: 1}),
    "count": a_pod("count", {GPU: 2, MEM: 1000}),
    "memory": a_pod("memory", {GPU: 1, MEM: 1000}),
    "percentage": a_pod("percentage", {GPU: 1, PERCENT: 20}),
    "init": a_pod("init", {}, init={GPU: 1, MEM: 1000}),
    "two-containers": a_pod("two-containers", containers={"a": {}, "b": {GPU: 1, MEM: 1000}}),
    "mig": a_pod("mig", {GPU: 1, MEM: 1000}, annotations={"nvidia.com/vgpu-mode": "mig"}),
    "amd": a_pod("amd", {"amd.com/gpu": 1, "amd.com/gpumem": 1000}),
    "hygon": a_pod("hygon", {"hygon.com/dcunum": 1, "hygon.com/dcumem": 1000}),
}
"""Each kind of pod that asks for cards; the pool's template lists 40 of `nvidia.com/gpu`."""
REFUSALS = {"cluster-autoscaler": "NotTriggerScaleUp", "karpenter": "FailedScheduling"}


@pytest.mark.parametrize("autoscaler", NAMES)
def test_no_autoscaler_makes_a_node_for_a_slice_by_itself(rig: Rig, autoscaler: str) -> None:
    with rig(autoscaler, {"HAMI_SCHEDULER_SCALE": "off"}) as (system, _):
        for pod in KINDS.values():
            answer = system.create(pod)
            assert answer.status_code == 201, answer.text

        def has_refused_all() -> bool:
            found = system.get("/api/v1/namespaces/default/events")["items"]
            by = {
                each["involvedObject"]["name"]
                for each in found
                if each["reason"] == REFUSALS[autoscaler]
                and autoscaler in str(each.get("source")) + str(each.get("reportingComponent"))
            }
            return by >= KINDS.keys()

        wait(has_refused_all, "the autoscaler to look at each pod", timeout_s=120)
        assert nodes_of(system) == []
        system.delete_all()


@pytest.mark.slow
def test_totals_in_node_capacity_without_the_marker_leave_pods_waiting(rig: Rig) -> None:
    """The way that is not ours: amounts of a node are no amounts of one card.

    Ten pods of 30,000 MiB take ten cards, three nodes; the sums of two nodes suffice.
    """
    totals = {MEM: str(CARDS * CARD_MIB), "nvidia.com/gpucores": str(100 * CARDS)}
    off = {"HAMI_SCHEDULER_SCALE": "off", "HAMI_WEBHOOK_MARK_SLICES": "off"}
    with rig("cluster-autoscaler", off, resources=totals) as (system, kubelets):
        kubelets.extra = totals
        for pod in slices(*[30_000] * 10):
            assert system.create(pod).status_code == 201

        def phases() -> Counter[str]:
            return Counter(pod["status"]["phase"] for pod in system.pods())

        wait(lambda: phases()["Running"] == 8, "what two nodes can take", timeout_s=120)
        log = system.folder / "cluster-autoscaler.log"
        looks = log.read_text().count("Calculating unneeded nodes")
        wait(
            lambda: log.read_text().count("Calculating unneeded nodes") > looks + 5,
            "five more looks",
            timeout_s=120,
        )
        assert len(nodes_of(system)) == 2
        assert phases() == {"Running": 8, "Pending": 2}
        system.delete_all()


ARRIVING = 200
"""Pods that come while a node is on its way to removal; the other node has just room for them."""


@pytest.mark.parametrize("autoscaler", NAMES)
def test_slices_keep_their_nodes_and_a_node_that_leaves_gets_none(
    rig: Rig, autoscaler: str
) -> None:
    with rig(autoscaler) as (system, kubelets):
        kubelets.slots = 60
        run(system, slices(*[30_000] * 5))
        where = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in system.pods()}
        [(stays, _), (leaves, _)] = Counter(where.values()).most_common()
        taints = [
            {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"},
            {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"},
        ]
        patch(system, f"/api/v1/nodes/{leaves}", {"spec": {"taints": taints}})
        # Spread: the emptier one is the first choice.
        policy = {"hami.io/node-scheduler-policy": "spread"}
        for number in range(ARRIVING):
            pod = a_pod(f"late-{number}", {GPU: 1, MEM: 200}, annotations=policy)
            assert system.create(pod).status_code == 201
        for number in range(ARRIVING):
            pod = system.wait_for_phase(f"late-{number}", "Running", timeout_s=120)
            assert pod["spec"]["nodeName"] != leaves

        system.delete(*(name for name, node in where.items() if node == leaves))
        patch(system, f"/api/v1/nodes/{leaves}", {"spec": {"taints": []}})
        wait(
            lambda: leaves not in {node["metadata"]["name"] for node in nodes_of(system)},
            "the empty node to go",
            timeout_s=180,
        )

        assert {node["metadata"]["name"] for node in nodes_of(system)} == {stays}
        kept = {name for name, node in where.items() if node == stays}
        assert {name for name in kept if phase_of(system, name) == "Running"} == kept
        let_go(system)


@pytest.mark.parametrize("autoscaler", NAMES)
def test_a_node_that_is_wanted_no_more_goes_and_one_with_a_pod_without_cards_is_used(
    rig: Rig, autoscaler: str
) -> None:
    with rig(autoscaler) as (system, kubelets):
        kubelets.is_driver_installed = False
        assert system.create(slices(30_000)[0]).status_code == 201
        wait(lambda: nodes_of(system) or None, "the node", timeout_s=120)
        system.delete("s0")
        wait(lambda: not nodes_of(system) or None, "the node to go", timeout_s=180)
        assert system.sql("SELECT string_agg(state, ' ') FROM scale_wishes") == "dropped"

        assert system.create(slices(30_000)[0]).status_code == 201
        [node] = wait(lambda: nodes_of(system) or None, "another node", timeout_s=120)
        other = a_pod("no-cards", {"cpu": 1})
        other["spec"]["nodeSelector"] = {"pool": POOL}
        assert system.create(other).status_code == 201
        system.wait_for_phase("no-cards", "Running", timeout_s=120)
        kubelets.is_driver_installed = True
        for name in ("s0", "no-cards"):
            pod = system.wait_for_phase(name, "Running", timeout_s=120)
            assert pod["spec"]["nodeName"] == node["metadata"]["name"]
        assert len(nodes_of(system)) == 1
        assert system.sql("SELECT string_agg(state, ' ') FROM scale_wishes") == "dropped arrived"
        let_go(system)


PRIORITIES = {"batch": 10, "urgent": 1000}


def of_priority(name: str, priority: str, delay_s: int = 0) -> Json:
    """A pod for which others may end after this time."""
    pod = a_pod(name, {GPU: 1, MEM: 30_000})
    pod["metadata"]["annotations"] = {"hami.io/preemption-delay-seconds": str(delay_s)}
    pod["spec"] |= {"priorityClassName": priority, "terminationGracePeriodSeconds": 0}
    return pod


def member(number: int, size: int) -> Json:
    """One of a group of this size; each takes a card."""
    annotations = {"hami.io/group-min": str(size)}
    pod = a_pod(f"member-{number}", {GPU: 1, MEM: CARD_MIB}, annotations=annotations)
    pod["metadata"]["labels"] = {GROUP_LABEL: "train"}
    return pod


@pytest.mark.parametrize("autoscaler", NAMES)
def test_the_annotation_chooses_whether_pods_end_or_a_node_comes(rig: Rig, autoscaler: str) -> None:
    """Preemption, groups and scaling together."""
    settings = {
        "HAMI_SCHEDULER_PREEMPTION_MODE": "on",
        "HAMI_SCHEDULER_PREEMPTION_AFTER_S": "1",
        "HAMI_SCHEDULER_SCALE_AFTER_S": "6",
    }
    with rig(autoscaler, settings) as (system, _):
        for name, value in PRIORITIES.items():
            body: Json = {"metadata": {"name": name}, "value": value}
            create(system, "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        low = [f"low-{number}" for number in range(CARDS)]
        run(system, [of_priority(name, "batch") for name in low])
        [first] = nodes_of(system)

        # No pod asked for a delay: one of a lower priority ends, and no node comes.
        run(system, [of_priority("now", "urgent")])
        assert sum(system.pod(name) is None for name in low) == 1
        assert [node["metadata"]["name"] for node in nodes_of(system)] == [
            first["metadata"]["name"]
        ]
        assert system.sql("SELECT count(*) FROM scale_wishes") == "1"

        # An autoscaler's turn: a node comes, and no pod ends.
        run(system, [of_priority("patient", "urgent", delay_s=600)])
        assert len(nodes_of(system)) == 2
        assert sum(system.pod(name) is None for name in low) == 1

        # A group of five cards, of which the second node has three: one demand, one node more.
        # Until it is complete nothing is asked for.
        for number in range(4):
            assert system.create(member(number, 5)).status_code == 201
        wait(lambda: len(waiting_of(system, "member-")) == 4, "four to wait")
        asked = system.sql("SELECT count(*) FROM scale_wishes")
        run(system, [*slices(10_000)])
        assert waiting_of(system, "member-") == {f"member-{number}" for number in range(4)}
        assert system.sql("SELECT count(*) FROM scale_wishes") == asked
        assert system.create(member(4, 5)).status_code == 201
        for number in range(5):
            system.wait_for_phase(f"member-{number}", "Running", timeout_s=120)
        assert int(system.sql("SELECT count(*) FROM scale_wishes")) == int(asked) + 1
        assert sum(system.pod(name) is None for name in low) == 1
        system.check_invariants()
        let_go(system)


def waiting_of(system: System, prefix: str) -> set[str]:
    return {
        pod["metadata"]["name"]
        for pod in system.pods()
        if pod["metadata"]["name"].startswith(prefix) and not pod["spec"].get("nodeName")
    }


def phase_of(system: System, name: str) -> str:
    return str((system.pod(name) or {"status": {}})["status"].get("phase"))


def patch(system: System, path: str, body: Json) -> None:
    answer = system.api.patch(path, json=body, headers=MERGE)
    assert answer.status_code == 200, answer.text


def wishes(system: System) -> str:
    return system.sql(
        "SELECT string_agg(state || coalesce(' ' || reason, ''), '|' ORDER BY id) FROM scale_wishes"
    )


def test_faults_cost_time_and_no_node(rig: Rig, autoscalers: Path) -> None:
    """Away one after the other: room for placeholders, the autoscaler, the scheduler, Postgres, and
    the driver of a node that has come."""
    with rig("") as (system, kubelets):
        quotas = "/api/v1/namespaces/hami-system/resourcequotas"
        hard = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        create(system, quotas, hard)
        # As the controller manager, which does not run here, would write it.
        status = {"hard": {"pods": "0"}, "used": {"pods": "0"}}
        patch(system, f"{quotas}/none/status", {"status": status})
        kubelets.is_driver_installed = False
        for pod in slices(*MIXED):
            assert system.create(pod).status_code == 201

        wait(lambda: "exceeded quota" in wishes(system), "the quota's refusal", timeout_s=60)
        system.api.delete(f"{quotas}/none")
        wait(lambda: wishes(system).count("asked") == 2, "two placeholders", timeout_s=60)

        pid = system.pid_of("scheduler")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait(lambda: system.pid_of("scheduler") not in (None, pid), "another scheduler")
        postgres = system.pid_of("postgres")
        assert postgres is not None
        os.kill(postgres, signal.SIGSTOP)
        try:
            kubeconfig = Path(system.described["kubeconfig"])
            with cluster_autoscaler(system, autoscalers, kubeconfig):
                wait(lambda: len(nodes_of(system)) == 2, "the nodes", timeout_s=120)
                os.kill(postgres, signal.SIGCONT)
                wait(
                    lambda: wishes(system).count("has not registered its cards yet") == 2,
                    "the nodes to wait for their cards",
                    timeout_s=120,
                )
                kubelets.is_driver_installed = True

                for number in range(len(MIXED)):
                    system.wait_for_phase(f"s{number}", "Running", timeout_s=120)
                assert len(nodes_of(system)) == 2
                assert system.sql("SELECT count(*) FROM scale_wishes") == "2"
                system.check_invariants()
                let_go(system)
        finally:
            os.kill(postgres, signal.SIGCONT)
