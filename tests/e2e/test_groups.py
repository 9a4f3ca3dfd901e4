"""Pods of a group start together or not at all, and hold nothing while they can't."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import checked, running_system
from tests.e2e.system import System, a_pod, slice_of, wait

pytestmark = pytest.mark.e2e

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
    with checked(running_groups) as system:
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


def bound(system: System, group: str) -> int:
    return sum(
        bool(pod["spec"].get("nodeName"))
        for pod in system.pods()
        if pod["metadata"]["name"].startswith(f"{group}-")
    )


def held(system: System) -> int:
    return int(system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL"))


def metric(system: System, name: str) -> float:
    import httpx

    text = httpx.get(f"{system.scheduler_url}/metrics").text
    found = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)]
    return sum(map(float, found))


def test_a_group_that_fits_is_bound_whole(groups: System) -> None:
    began = time.monotonic()
    create(groups, *(member("whole", number, 8) for number in range(8)))

    wait(lambda: bound(groups, "whole") == 8 or None, "all to be bound")

    measured.note(f"8 members bound {time.monotonic() - began:.2f} s after the first was created")
    for number in range(8):
        groups.wait_for_phase(f"whole-{number}", "Running")


def test_a_group_with_room_for_seven_of_eight_holds_nothing(groups: System) -> None:
    groups.run(a_pod("blocker", slice_of(CARD_MIB)))
    create(groups, *(member("big", number, 8) for number in range(8)))
    text = groups.wait_for_reason("big-7")

    assert "GroupWaiting" in text
    wait(lambda: metric(groups, "hami_scheduler_group_held_cards") == 0 or None, "nothing held")
    assert bound(groups, "big") == 0
    assert held(groups) == 1
    # Others are placed in the meantime.
    groups.run(a_pod("small", slice_of(CARD_MIB)))
    groups.delete("small")

    groups.delete("blocker")
    freed = time.monotonic()
    wait(lambda: bound(groups, "big") == 8 or None, "all to be bound")
    spent_s = time.monotonic() - freed
    measured.note(f"all 8 bound {spent_s:.2f} s after the eighth slice was free")
