"""FAULT-6, -8, -15, -16, -35: the grants of a group are one transaction, all of them or none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, slice_of, wait
from tests.faults.processes import kill, suspend_service, wait_until_back
from tests.faults.stage import Faulty, Stage, since

pytestmark = [pytest.mark.faults, pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2")]

SIZE, SIZE_MIB = 4, 30_000
STOPPED_S = 8.0
"""Longer than a statement may take."""


def come(stage: Stage, *numbers: int, cpu: int = 0) -> None:
    """Members of the group are created, with a request for the host's CPU."""
    for number in numbers:
        name = f"{stage.prefix}-{number}"
        pod = a_pod(name, slice_of(SIZE_MIB), annotations={"hami.io/group-min": str(SIZE)})
        pod["metadata"]["labels"] = {GROUP_LABEL: "together"}
        if cpu:
            pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": str(cpu)}
        answer = stage.system.create(pod)
        assert answer.status_code == 201, answer.text
        stage.sizes_mib[name] = SIZE_MIB


@contextmanager
def last_one_kept_out(stage: Stage, *last: int) -> Iterator[None]:
    """Within the block no node has the CPU that the last member wants, so it can't be bound."""
    system = stage.system
    nodes = system.get("/api/v1/nodes")["items"]
    cpu = int(nodes[0]["status"]["allocatable"]["cpu"])
    names = [f"cpu-{number}" for number in range(len(nodes))]
    for name in names:
        pod = a_pod(name, {}, command=("sleep", "600"))
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": str(cpu // 2 + 1)}}
        system.run(pod)
    come(stage, *last, cpu=cpu // 2)
    yield
    system.delete(*names)


def bound_members(stage: Stage) -> list[Json]:
    return [pod for pod in stage.mine() if pod["spec"].get("nodeName")]


@pytest.mark.row(kind="kill")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            "store.commit.before=kill",
            id="before",
            marks=pytest.mark.row(
                point="FAULT-6",
                fault="before the grants of a group are written",
                answer="no member is bound; all start with the next scheduler",
            ),
        ),
        pytest.param(
            "store.commit.after=kill",
            id="after",
            marks=pytest.mark.row(
                point="FAULT-8",
                fault="the grants of a group are written, the answer is lost",
                answer="the members are bound under new tokens",
            ),
        ),
        pytest.param(
            "pods.bind.before=kill@2",
            id="two-bound",
            marks=pytest.mark.row(
                point="FAULT-15",
                fault="two members of a group are bound, the others not yet",
                answer="the others are bound by the next scheduler",
            ),
        ),
    ],
)
def test_a_group_survives_its_scheduler(faulty: Faulty, stage: Stage, fault: str) -> None:
    faulty.plan(fault)
    come(stage, *range(SIZE))
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=90)
    faulty.plan()

    stage.recover()


@pytest.mark.row(
    point="FAULT-6",
    fault="the scheduler, while members of a group wait for the last one at /bind",
    kind="kill",
    answer="nothing was written; all start when the last one has a node",
)
def test_a_group_at_its_barrier_survives_its_scheduler(
    faulty: Faulty, system: System, stage: Stage
) -> None:
    with last_one_kept_out(stage, SIZE - 1):
        come(stage, *range(SIZE - 1))
        wait(lambda: held_slices(system) or None, "members to hold cards", timeout_s=60)
        pid = kill(system, "scheduler")
        wait_until_back(system, "scheduler", pid)
        assert bound_members(stage) == []
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=120)

    stage.recover()


def held_slices(system: System) -> float:
    """Slices that members hold while they wait for others."""
    text = httpx.get(f"{system.scheduler_url}/metrics").text
    lines = text.splitlines()
    line = next(each for each in lines if each.startswith("hami_scheduler_group_held_cards"))
    return float(line.rsplit(" ", 1)[1])


@pytest.mark.row(
    point="FAULT-15",
    fault="the API server takes 5 s for each binding of a group",
    kind="delay",
    answer="each member is bound once",
)
def test_a_group_is_bound_by_a_slow_api_server(faulty: Faulty, stage: Stage) -> None:
    faulty.plan("pods.bind.before=delay:5*4")
    come(stage, *range(SIZE))
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=90)
    faulty.plan()

    stage.recover()


@pytest.mark.row(
    point="FAULT-35",
    fault="Postgres, while the grants of a group are to be written",
    kind="delay",
    answer="no member is bound until it is back, then all are",
)
def test_a_group_waits_for_postgres(faulty: Faulty, system: System, stage: Stage) -> None:
    with suspend_service(system, "postgres"):
        come(stage, *range(SIZE))
        time.sleep(STOPPED_S)
        assert bound_members(stage) == []
    back_s = time.monotonic()
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=120)

    stage.check()
    stage.report(since(back_s))


@pytest.mark.row(
    point="FAULT-16",
    fault="a member of a group is deleted while the others wait at /bind",
    kind="error",
    answer="the one that takes its place completes the group",
)
def test_a_member_that_goes_is_replaced(faulty: Faulty, system: System, stage: Stage) -> None:
    with last_one_kept_out(stage, SIZE - 1):
        come(stage, *range(SIZE - 1))
        wait(lambda: held_slices(system) or None, "members to hold cards", timeout_s=60)
        system.delete(f"{stage.prefix}-{SIZE - 1}")
        del stage.sizes_mib[f"{stage.prefix}-{SIZE - 1}"]
        assert bound_members(stage) == []

        come(stage, SIZE)
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=120)
    stage.recover()
