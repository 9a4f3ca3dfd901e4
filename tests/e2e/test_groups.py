"""Pods of a group start together or not at all, and hold nothing while they can't."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator

import httpx
import pytest
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import checked_system, running_system
from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

BIND_S = 6
CARD_MIB = 70_000
"""More than half of a card, so that each has room for one."""


@pytest.fixture(scope="module")
def running_groups(cluster_kind: str) -> Iterator[System]:
    """Two nodes of four cards each."""
    environment = {"HAMI_SCHEDULER_GROUP_BIND_S": str(BIND_S)}
    flags = ("--nodes", "2", "--gpus", "4", "--binding", "late")
    with running_system(cluster_kind, *flags, environment=environment) as system:
        yield system


@pytest.fixture
def groups(running_groups: System) -> Iterator[System]:
    with checked_system(running_groups) as system:
        yield system


def member(group: str, number: int, size: int, memory_mib: int = CARD_MIB, cpu: str = "") -> Json:
    pod = a_pod(
        f"{group}-{number}", slice_of(memory_mib), annotations={"hami.io/group-min": str(size)}
    )
    pod["metadata"]["labels"] = {GROUP_LABEL: group}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    if cpu:
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return pod


def create(system: System, *pods: Json) -> None:
    for pod in pods:
        answer = system.create(pod)
        assert answer.status_code == 201, answer.text


def count_bound(system: System, group: str) -> int:
    return sum(
        bool(pod["spec"].get("nodeName"))
        for pod in system.pods()
        if pod["metadata"]["name"].startswith(f"{group}-")
    )


def count_held(system: System) -> int:
    return int(system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL"))


def metric(system: System, name: str) -> float:
    text = httpx.get(f"{system.scheduler_url}/metrics").text
    found = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
    return sum(map(float, found))


def test_a_group_that_fits_is_bound_whole(groups: System) -> None:
    began = time.monotonic()
    create(groups, *(member("whole", number, 8) for number in range(8)))

    wait(lambda: count_bound(groups, "whole") == 8 or None, "all to be bound")

    measured.note(f"8 members bound {time.monotonic() - began:.2f} s after the first was created")
    for number in range(8):
        groups.wait_for_phase(f"whole-{number}", "Running")


def test_a_group_with_room_for_seven_of_eight_holds_nothing(groups: System) -> None:
    groups.run(a_pod("blocker", slice_of(CARD_MIB)))
    create(groups, *(member("big", number, 8) for number in range(8)))
    text = groups.wait_for_reason("big-7")

    assert "GroupWaiting" in text
    wait(lambda: metric(groups, "hami_scheduler_group_held_cards") == 0 or None, "nothing held")
    assert count_bound(groups, "big") == 0
    assert count_held(groups) == 1
    # Others are placed in the meantime.
    groups.run(a_pod("small", slice_of(CARD_MIB)))
    groups.delete("small")

    groups.delete("blocker")
    freed = time.monotonic()
    wait(lambda: count_bound(groups, "big") == 8 or None, "all to be bound")
    spent_s = time.monotonic() - freed
    measured.note(f"all 8 bound {spent_s:.2f} s after the eighth slice was free")


def cpu_of_a_node(system: System) -> int:
    """Whole cores that a node has for pods."""
    [*nodes] = system.get("/api/v1/nodes")["items"]
    return int(nodes[0]["status"]["allocatable"]["cpu"])


def without_cards(name: str, cpu: int) -> Json:
    pod = a_pod(name, {}, command=("sleep", "600"))
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu)}}
    pod["spec"]["terminationGracePeriodSeconds"] = 0
    pod["spec"]["schedulerName"] = "hami-scheduler"
    return pod


def test_a_group_that_lacks_a_hosts_cpu_frees_what_it_holds(groups: System) -> None:
    cpu = cpu_of_a_node(groups)
    each = max(1, cpu // 4)
    # Of four times that on each node, one has room for three.
    groups.run(without_cards("blocker", cpu - 4 * each + 1))
    create(groups, *(member("short", number, 8, cpu=str(each)) for number in range(8)))

    wait(
        lambda: metric(groups, 'hami_scheduler_groups_total{result="timed_out"}') >= 1 or None,
        "the group to be given up",
        timeout_s=60,
    )
    assert count_bound(groups, "short") == 0
    assert metric(groups, "hami_scheduler_group_held_cards") == 0
    assert count_held(groups) == 0
    # The hosts' CPU is free again, and so are the cards.
    groups.run(*(member("alone", number, 1, cpu=str(each)) for number in range(7)))
    groups.delete(*(f"alone-{number}" for number in range(7)))
    assert "GroupWaiting" in {reason for n in range(8) for reason, _ in groups.events(f"short-{n}")}
    attempts = r"8 pods on 2 nodes, 8 needed / \d of 8 pods of group .* came to be bound within"
    wait(lambda: re.search(attempts, groups.sql(why_it_waited("short"))), "both to be recorded")

    groups.delete("blocker")
    wait(lambda: count_bound(groups, "short") == 8 or None, "all to be bound", timeout_s=120)


@pytest.mark.parametrize("lacking", ["slices", "cpu"])
def test_two_groups_that_fit_one_at_a_time_run_one_after_the_other(
    groups: System, lacking: str, request: pytest.FixtureRequest
) -> None:
    rounds = 50 if request.config.getoption("--slow") else 2
    size, spent = 6, []
    for number in range(rounds):
        began = time.monotonic()
        names = [f"g{number}a", f"g{number}b"]
        cpu = str(cpu_of_a_node(groups) // 3) if lacking == "cpu" else ""
        memory_mib = CARD_MIB if lacking == "slices" else 20_000
        # One after the other, so that each has a part of the queue.
        for index in range(size):
            create(groups, *(member(name, index, size, memory_mib, cpu) for name in names))
        first = wait(
            lambda: next((n for n in names if count_bound(groups, n) == size), None),  # noqa: B023
            "one group to be bound",
            timeout_s=90,
        )
        second = next(name for name in names if name != first)
        assert count_bound(groups, second) == 0
        groups.delete(*(f"{first}-{index}" for index in range(size)))
        wait(
            lambda: count_bound(groups, second) == size or None,  # noqa: B023
            "the other to be bound",
            timeout_s=90,
        )
        groups.delete(*(f"{second}-{index}" for index in range(size)))
        spent.append(time.monotonic() - began)
    measured.note(
        f"{rounds} times two groups that lack {lacking}: one after the other, "
        f"{max(spent):.1f} s at most for both"
    )


@pytest.mark.parametrize("after", ["at-the-barrier", "some-bound"])
def test_a_group_survives_the_kill_of_its_scheduler(groups: System, after: str) -> None:
    pid = groups.pid_of("scheduler")
    assert pid is not None
    size = 8
    count = 5 if after == "at-the-barrier" else size
    create(groups, *(member("kept", number, size) for number in range(count)))
    if after == "some-bound":
        wait(lambda: count_bound(groups, "kept") >= 1 or None, "some to be bound", timeout_s=60)
    os.kill(pid, signal.SIGKILL)
    create(groups, *(member("kept", number, size) for number in range(count, size)))

    wait(lambda: groups.pid_of("scheduler") not in (None, pid) or None, "another scheduler")
    wait(lambda: count_bound(groups, "kept") == size or None, "all to be bound", timeout_s=90)
    groups.check_invariants()


def test_a_member_that_is_deleted_while_others_wait_is_replaced(groups: System) -> None:
    create(groups, *(member("swap", number, 8) for number in range(7)))
    groups.wait_for_reason("swap-6")
    groups.delete("swap-0")

    create(groups, member("swap", 7, 8), member("swap", 8, 8))

    wait(lambda: count_bound(groups, "swap") == 8 or None, "all to be bound", timeout_s=60)


def test_a_wrong_number_is_refused_at_admission(groups: System) -> None:
    answer = groups.create(member("wrong", 0, 0))

    assert answer.status_code == 422
    assert "hami.io/group-min is '0': expected a whole number from 1 to 1000" in answer.text


def test_explain_names_what_a_group_lacks(groups: System) -> None:
    groups.run(a_pod("blocker", slice_of(CARD_MIB)))
    create(groups, *(member("why", number, 8) for number in range(8)))
    groups.wait_for_reason("why-0")

    text = hamictl(groups.folder, "explain", "group/why")

    assert "default/why: 8 pods, 8 start together" in text
    assert "7 of the 8 pods that start together fit, in this order; why-" in text
    assert text.count("would go to") == 7
    answer = json.loads(hamictl(groups.folder, "explain", "group/why", "-o", "json"))
    assert answer["fits"] is False
    assert "GroupWaiting" in hamictl(groups.folder, "pending", "-o", "json")


def test_a_group_that_is_gone_is_explained_from_its_record(groups: System) -> None:
    groups.run(a_pod("blocker", slice_of(CARD_MIB)))
    create(groups, *(member("past", number, 8) for number in range(8)))
    wait(lambda: "7 of the 8 pods" in groups.sql(why_it_waited("past")) or None, "its record")
    groups.delete(*(f"past-{number}" for number in range(8)))

    text = hamictl(groups.folder, "explain", "group/past")

    assert "default/past: 0 pods, 8 start together" in text
    assert "no pod of it exists any more" in text
    assert "refused" in text
    assert "7 of the 8 pods that start together fit" in text
    pods = groups.sql("SELECT count(*) FROM waiting_pods_at(now()) WHERE pod_name = ''")
    assert int(pods) == 0


def why_it_waited(group: str) -> str:
    """Return the statement of docs/sql.md."""
    return (
        "SELECT string_agg(summary, ' / ' ORDER BY at) FROM decisions "
        f"WHERE group_key = 'group/default/{group}' AND pod_name = ''"
    )


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_GROUPS = f"{GROUP_LABEL.partition('/')[0]}/v1alpha1"


@pytest.fixture
def pod_groups(groups: System, cluster_kind: str) -> Iterator[str]:
    """The path of scheduler-plugins' PodGroups, which the scheduler has found."""
    if cluster_kind != "real":
        pytest.skip("the emulated API server takes no CustomResourceDefinition (--cluster=real)")
    group, _, version = POD_GROUPS.partition("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    body: Json = {
        "metadata": {
            "name": f"podgroups.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups"},
            "scope": "Namespaced",
            "versions": [{"name": version, **served}],
        },
    }
    answer = groups.api.post(CRDS, json=body)
    assert answer.status_code == 201, answer.text
    path = f"/apis/{POD_GROUPS}/namespaces/default/podgroups"
    wait(lambda: pod_group(groups, path, "probe", 2) in (201, 409), "PodGroups to be served")
    create(groups, labelled_member("probe", 0))
    wait(lambda: quorum(groups, "probe") == 2, "the scheduler to find PodGroups", timeout_s=90)
    groups.delete("probe-0")
    yield path
    groups.api.delete(f"{CRDS}/podgroups.{group}")


def pod_group(system: System, path: str, name: str, size: int) -> int:
    """Create a PodGroup; return the status of the answer."""
    body: Json = {
        "apiVersion": POD_GROUPS,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": size},
    }
    return system.api.post(path, json=body).status_code


def quorum(system: System, group: str) -> int | None:
    answer = json.loads(hamictl(system.folder, "explain", f"group/{group}", "-o", "json"))
    found: int | None = answer["quorum"]
    return found


def labelled_member(group: str, number: int) -> Json:
    """A member that has only the label: its PodGroup states how many start together."""
    pod = member(group, number, 1)
    del pod["metadata"]["annotations"]
    return pod


def test_a_podgroup_of_scheduler_plugins_has_the_quorum(groups: System, pod_groups: str) -> None:
    groups.run(a_pod("blocker", slice_of(CARD_MIB)))
    assert pod_group(groups, pod_groups, "crd", 8) == 201
    create(groups, *(labelled_member("crd", number) for number in range(8)))
    assert "GroupWaiting" in groups.wait_for_reason("crd-7")
    assert (count_bound(groups, "crd"), count_held(groups), quorum(groups, "crd")) == (0, 1, 8)

    groups.delete("blocker")
    wait(lambda: count_bound(groups, "crd") == 8 or None, "all to be bound")
