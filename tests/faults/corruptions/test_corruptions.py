"""A wrong value in one store is refused, repaired or shown, and the system continues."""

from collections.abc import Iterator

import pytest

from tests.faults.corruptions.corruption import (
    WITHIN_S,
    Corruption,
    Outcome,
    pids,
    room_of,
    wait_until_right,
)
from tests.faults.corruptions.page import CASES
from tests.faults.stage import Faulty, Stage

pytestmark = pytest.mark.slow


@pytest.fixture
def lying(faulty_cluster: Faulty) -> Iterator[Faulty]:
    """The session's system; its pods are gone afterwards."""
    faulty_cluster.plan()
    yield faulty_cluster
    system = faulty_cluster.system
    system.delete_all()
    system.check_invariants()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_lies_is_refused_repaired_or_shown(lying: Faulty, case: Corruption) -> None:
    stage = Stage(lying, prefix="deceived")
    system = stage.system
    stage.run_before(1)
    [pod] = stage.mine()
    room = room_of(system, pod)
    before = pids(system)
    try:
        case.lie(room)
        if case.outcome is not Outcome.REFUSED:
            if case.pods_come:
                stage.come(2)
            wait_until_right(room, case)
        stage.settle(WITHIN_S)
        stage.check()
    finally:
        for undo in reversed(room.undone):
            undo()
    assert pids(system) == before, "a process has ended"
