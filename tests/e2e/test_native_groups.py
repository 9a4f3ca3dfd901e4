"""Kubernetes' own gangs, with its gates on: kube-scheduler asks hypothetical questions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import checked_system, running_system
from tests.e2e.system import System, a_pod, slice_of, wait
from tests.e2e.test_groups import CARD_MIB, count_bound, count_held, create, metric

pytestmark = pytest.mark.e2e

GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true"
API = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
SPINS_S = 10.0


@pytest.fixture(scope="module")
def running_gangs(cluster_kind: str) -> Iterator[System]:
    if cluster_kind != "real":
        pytest.skip("needs a real kube-apiserver and kube-scheduler of 1.36 (--cluster=real)")
    with running_system(
        cluster_kind,
        *("--nodes", "1", "--gpus", "4", "--binding", "late"),
        server_arguments=(
            GATES.partition(",")[0],
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ),
        scheduler_arguments=(GATES,),
    ) as system:
        if system.api.get(API).status_code == 404:
            pytest.skip("this kube-apiserver has no PodGroups in scheduling.k8s.io/v1alpha2")
        yield system


@pytest.fixture
def gangs(running_gangs: System) -> Iterator[System]:
    with checked_system(running_gangs) as system:
        yield system
        for item in system.get(API)["items"]:
            system.api.delete(f"{API}/{item['metadata']['name']}")


def gang(system: System, name: str, size: int, **changes: object) -> None:
    body: Json = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }
    answer = system.api.post(API, json=body)
    assert answer.status_code == 201, answer.text
    for number in range(size):
        pod = a_pod(f"{name}-{number}", slice_of(CARD_MIB))
        pod["spec"] |= {
            "schedulingGroup": {"podGroupName": name},
            "terminationGracePeriodSeconds": 0,
            **changes,
        }
        create(system, pod)


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_gang_that_fits_is_bound_whole(gangs: System) -> None:
    gang(gangs, "whole", 4)

    wait(lambda: count_bound(gangs, "whole") == 4 or None, "all to be bound", timeout_s=60)


def test_a_gang_that_spins_leaks_nothing_and_costs_us_little(gangs: System) -> None:
    gangs.run(a_pod("blocker", slice_of(CARD_MIB)))
    gang(gangs, "spins", 4)
    text = gangs.wait_for_reason("spins-0")
    assert "GroupWaiting" in text
    pid = gangs.pid_of("scheduler")
    assert pid is not None

    asked, used_s, began = asked_so_far(gangs), processor_s(pid), time.monotonic()
    wait(lambda: time.monotonic() - began > SPINS_S or None, "the gang to spin", timeout_s=60)
    spent_s = time.monotonic() - began
    measured.note(
        f"a gang that can't be placed: {(asked_so_far(gangs) - asked) / spent_s:.0f} /filter a "
        f"second, {(processor_s(pid) - used_s) / spent_s:.2f} processors of the scheduler's"
    )
    assert metric(gangs, "hami_scheduler_group_held_cards") == 0
    assert (count_bound(gangs, "spins"), count_held(gangs)) == (0, 1)
    # Nothing is held against others: the three cards that are free are used.
    gangs.run(*(a_pod(f"other-{number}", slice_of(CARD_MIB)) for number in range(3)))
    gangs.delete(*(f"other-{number}" for number in range(3)))

    gangs.delete("blocker")
    wait(lambda: count_bound(gangs, "spins") == 4 or None, "all to be bound", timeout_s=60)


def asked_so_far(system: System) -> float:
    return metric(system, "hami_scheduler_decisions_total")


def test_workload_aware_preemption_leaves_no_assumption_and_ends_no_pod_for_slices(
    gangs: System,
) -> None:
    body: Json = {"metadata": {"name": "urgent"}, "value": 1000}
    gangs.api.post("/apis/scheduling.k8s.io/v1/priorityclasses", json=body)
    gangs.run(*(a_pod(f"low-{number}", slice_of(CARD_MIB)) for number in range(4)))

    gang(gangs, "urgent", 2, priorityClassName="urgent")
    gangs.wait_for_reason("urgent-0")

    assert metric(gangs, "hami_scheduler_group_held_cards") == 0
    assert {
        gangs.wait_for_phase(f"low-{number}", "Running")["status"]["phase"] for number in range(4)
    } == {"Running"}
    assert count_held(gangs) == 4
