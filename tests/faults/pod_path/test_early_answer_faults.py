"""Faults between /filter's answer and the commit of its reservation: the pods run all the same.

/filter answers while the reservation is written, when the scheduler has run for some seconds and
nobody else reserves; each case waits until it does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

import httpx
import pytest

from tests.e2e.system import System, wait
from tests.faults.pod_path.pod_path_points import AGAIN, PLANNED, Case
from tests.faults.processes import away, serving_pid
from tests.faults.stage import Faulty, Stage, quietly
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2"),
]

FAULT_S = 4.0
"""How long a fault lasts that is not counted."""
WARM_PODS = 20
"""Until one of so many is answered early."""
BATCH = 12
_EARLY = re.compile(r'^hami_scheduler_early_answers_total\{result="(\w+)"\} (\S+)$', re.MULTILINE)

CASES = (
    Case(
        "FAULT-6",
        "store.reserve_all.before",
        "/filter has answered, the batch of reservations is not written",
        AGAIN,
        ("kill", "error", "delay", "duplicate"),
    ),
    Case(
        "FAULT-8",
        "store.reserve_all.after",
        "/filter has answered, the batch is written, its answer is lost",
        "/bind takes the reservation from the ledger",
        ("kill", "error", "delay"),
    ),
)


def cases() -> Iterable[object]:
    """Every point with every kind."""
    for case in CASES:
        for kind in case.kinds:
            row = pytest.mark.row(
                point=case.number,
                fault=f"`{case.point}`: {case.what}",
                kind=kind,
                answer=case.answer,
            )
            name = f"{case.number}-{case.point}-{kind}"
            yield pytest.param(case.point, PLANNED[kind], id=name, marks=row)


@pytest.mark.parametrize(("point", "action"), list(cases()))
def test_pods_run_whose_reservation_was_answered_early(
    faulty: Faulty, point: str, action: str
) -> None:
    stage = Stage(faulty)
    _until_early(stage)
    pid = serving_pid(faulty.system, "scheduler")
    before = _answers(faulty.system)
    faulty.plan(f"{point}={action}")

    stage.come()
    deadline = time.monotonic() + FAULT_S
    wait(lambda: time.monotonic() > deadline or quietly(stage.settled)(), "the fault to pass")
    faulty.plan()
    recovered_s = stage.settle()

    if action == "kill":
        assert serving_pid(faulty.system, "scheduler") != pid
    elif action.startswith(("error", "twice")):
        assert _answers(faulty.system)["broken"] > before["broken"]
    else:
        assert _answers(faulty.system)["kept"] > before["kept"]
    stage.check()
    stage.report(recovered_s)


@pytest.mark.row(
    point="FAULT-36",
    fault="Postgres is killed while a whole batch of reservations that /filter has answered waits",
    kind="kill",
    answer="nothing of it is written, each /bind fails with the reason; kube-scheduler tries again",
)
def test_f36_postgres_is_killed_before_answered_reservations_are_written(faulty: Faulty) -> None:
    stage = Stage(faulty)
    _until_early(stage)
    before = _answers(faulty.system)
    first = len(stage.sizes_mib)
    faulty.plan("store.reserve_all.before=delay:3*1")
    stage.come(BATCH)
    with away(faulty.system, "postgres"):
        faulty.plan()
        # The batch meets a ledger that is not there.
        wait(
            lambda: _answers(faulty.system)["broken"] > before["broken"],
            "the batch to fail",
            timeout_s=PATIENCE_S,
        )
    recovered_s = stage.settle()
    stage.check()
    broken = _answers(faulty.system)["broken"] - before["broken"]
    assert len(stage.sizes_mib) == first + BATCH
    stage.report(recovered_s, more=f"{broken:g} of {BATCH} answers did not hold")


def _until_early(stage: Stage) -> None:
    """Until the scheduler answers before it has written."""
    system = stage.system
    for _ in range(WARM_PODS):
        kept = _answers(system)["kept"]
        stage.come(1)
        stage.settle()
        if _answers(system)["kept"] > kept:
            return
    raise AssertionError(f"none of {WARM_PODS} pods was answered early")


def _answers(system: System) -> dict[str, float]:
    """Early answers by what became of them."""
    text = httpx.get(f"{system.scheduler_url}/metrics", timeout=PATIENCE_S).text
    found = {result: float(count) for result, count in _EARLY.findall(text)}
    return {"kept": 0.0, "broken": 0.0} | found
