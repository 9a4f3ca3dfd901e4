"""FAULT-14: a wall clock jumps; time that decides is the ledger's or monotonic."""

import time

import pytest

from tests.faults.stage import Faulty, Stage, since

pytestmark = pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-2")

JUMP_S = 600.0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [JUMP_S, -JUMP_S], ids=["forth", "back"])
@pytest.mark.parametrize("who", ["hami-scheduler", "postgres", "node-0"])
@pytest.mark.row(
    point="FAULT-14",
    fault="a wall clock jumps ten minutes, and back again",
    kind="error",
    answer="deadlines are the ledger's; what ended early is made again",
    promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2",
)
def test_f14_clock_jump(faulty: Faulty, stage: Stage, who: str, seconds: float) -> None:
    stage.run_before(1)
    stage.come(2)
    faulty.clocks.jump(who, seconds)
    stage.come(2)
    jumped_s = time.monotonic()
    stage.settle()
    recovered_s = since(jumped_s)
    stage.come(1)
    faulty.clocks.all_right()
    stage.come(2)
    stage.settle()

    stage.check()
    stage.report(recovered_s)
