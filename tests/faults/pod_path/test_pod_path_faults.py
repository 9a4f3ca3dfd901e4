"""A fault at every step of a pod's path: the pods run all the same, each with its own limits.

Each case makes one fault happen while pods of different sizes come, removes it after a while, and
then runs the checker: invariants by SQL, ledger = pods, and the card that every container sees =
the card that its pod asked for. An agent that dies inside Allocate costs that one pod: the kubelet
fails it permanently (its controller makes another), and its slice must be freed. The points are in
`pod_path_points.py`.
"""

import time
from collections.abc import Iterable

import pytest

from tests.e2e.system import wait
from tests.faults.pod_path.pod_path_points import CASES, PLANNED
from tests.faults.stage import Faulty, Stage, quietly

pytestmark = pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2")

FAULT_S = 4.0
"""How long a fault lasts that is not counted."""


def cases() -> Iterable[object]:
    """Every point with every kind; those that are not quick carry the mark `slow`."""
    for case in CASES:
        for kind in case.kinds:
            row = pytest.mark.row(
                point=case.number,
                fault=f"`{case.point}`: {case.what}",
                kind=kind,
                answer=case.answer,
            )
            yield pytest.param(
                case.point,
                dict(case.planned).get(kind, PLANNED[kind]),
                id=f"{case.number}-{case.point}-{kind}",
                marks=[row] if kind in case.quick else [row, pytest.mark.slow],
            )


@pytest.mark.parametrize(("point", "action"), list(cases()))
def test_pods_run_with_their_own_limits(faulty: Faulty, point: str, action: str) -> None:
    killed_agent = point.startswith("node_") and action == "kill"
    stage = Stage(faulty, may_refuse=int(killed_agent))
    faulty.plan(f"{point}={action}")

    stage.come()
    deadline = stage.began_s + FAULT_S
    wait(lambda: time.monotonic() > deadline or quietly(stage.is_settled)(), "the fault to pass")
    faulty.plan()
    stage.recover()
