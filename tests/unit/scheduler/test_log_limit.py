"""A pod that is tried each second writes few lines, whatever its author does."""

from __future__ import annotations

from hami_scheduler.pod_events import MAX_TEXTS, WINDOW_S, LogLimit
from hamicommon.domain.ids import PodUid

from tests.unit.clock import Clock

U = PodUid("u")


def test_the_same_text_is_written_once_in_a_window_and_counts_what_was_left_out() -> None:
    clock = Clock()
    limit = LogLimit(clock)

    assert limit.take(U, "a") == 0
    assert {limit.take(U, "a") for _ in range(100)} == {None}
    clock.now += WINDOW_S
    assert limit.take(U, "a") == 100
    assert limit.take(U, "b") == 0, "counted once"


def test_another_text_has_the_count_of_the_pods_lines() -> None:
    limit = LogLimit(Clock())
    for text in "aaa":
        limit.take(U, text)

    assert limit.take(U, "b") == 2


def test_a_text_that_differs_each_time_writes_few_lines() -> None:
    clock = Clock()
    limit = LogLimit(clock)

    written = [limit.take(U, str(number)) for number in range(1000)]

    assert sum(one is not None for one in written) == MAX_TEXTS
    clock.now += WINDOW_S
    assert limit.take(U, "1000") == 1000 - MAX_TEXTS


def test_one_pod_takes_nothing_from_another() -> None:
    limit = LogLimit(Clock())
    for number in range(1000):
        limit.take(U, str(number))

    assert limit.take(PodUid("v"), "a") == 0
