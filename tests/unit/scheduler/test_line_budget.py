"""A pod that is tried each second writes few lines, whatever its author does."""

from __future__ import annotations

from hami_scheduler.line_budget import MOST_LINES, MOST_PODS, WINDOW_S, LineBudget
from hamicommon.domain.ids import PodUid

U = PodUid("u")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_text_is_written_once_in_a_window_and_counts_what_was_left_out() -> None:
    clock = Clock()
    budget = LineBudget(clock)

    assert budget.spend(U, "a") == 0
    assert {budget.spend(U, "a") for _ in range(100)} == {None}
    clock.now += WINDOW_S
    assert budget.spend(U, "a") == 100


def test_a_text_that_differs_each_time_writes_few_lines() -> None:
    budget = LineBudget(Clock())

    written = [budget.spend(U, str(number)) for number in range(1000)]

    assert sum(one is not None for one in written) == MOST_LINES


def test_one_pod_takes_nothing_from_another() -> None:
    budget = LineBudget(Clock())
    for number in range(1000):
        budget.spend(U, str(number))

    assert budget.spend(PodUid("v"), "a") == 0


def test_the_pods_that_are_remembered_are_bounded() -> None:
    budget = LineBudget(Clock())
    for number in range(MOST_PODS + 1):
        budget.spend(PodUid(str(number)), "a")

    assert budget.spend(PodUid("0"), "a") == 0, "the first was forgotten"
    assert budget.spend(PodUid(str(MOST_PODS)), "a") is None
