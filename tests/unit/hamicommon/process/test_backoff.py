"""Pauses between tries."""

import pytest
from hamicommon.process.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(1.0, 5.0)
    for most_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert most_s / 2 <= backoff.next_s() <= most_s


def test_after_a_success_a_failure_is_a_first_one() -> None:
    backoff = Backoff(1.0, 60.0)
    for _ in range(5):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 1.0


@pytest.mark.parametrize("first_s", [3.0, 30.0])
def test_no_pause_exceeds_the_longest(first_s: float) -> None:
    backoff = Backoff(first_s, 3.0)
    assert all(backoff.next_s() <= 3.0 for _ in range(10))


def test_two_that_fail_together_do_not_try_again_together() -> None:
    assert len({Backoff(1.0, 1.0).next_s() for _ in range(5)}) > 1
