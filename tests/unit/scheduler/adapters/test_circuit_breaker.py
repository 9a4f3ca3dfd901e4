"""When somebody who did not answer is asked again."""

from __future__ import annotations

from itertools import pairwise

from hami_scheduler.adapters.circuit_breaker import Circuit
from hypothesis import given
from hypothesis import strategies as st

OPEN_S = 2.0


def test_who_answers_is_always_asked() -> None:
    circuit = Circuit(open_s=OPEN_S)

    for now_s in (0.0, 0.1, 5.0):
        assert circuit.allows(now_s)
        circuit.answered()


def test_who_did_not_answer_is_left_alone_for_a_while() -> None:
    circuit = Circuit(open_s=OPEN_S)
    circuit.failed(10.0)

    assert not circuit.allows(11.9)
    assert circuit.allows(12.0)


def test_one_caller_tries_and_its_answer_lets_all_in() -> None:
    circuit = Circuit(open_s=OPEN_S)
    circuit.failed(10.0)

    assert [circuit.allows(12.5), circuit.allows(12.5)] == [True, False]
    circuit.answered()
    assert circuit.allows(12.6)


def test_a_caller_that_never_reports_is_followed_by_another() -> None:
    circuit = Circuit(open_s=OPEN_S)
    circuit.failed(10.0)

    assert circuit.allows(12.5)
    assert not circuit.allows(14.4)
    assert circuit.allows(14.5)


# In parts of a second that add up without rounding.
@given(st.lists(st.integers(1, 192).map(lambda part: part / 64), min_size=1, max_size=60))
def test_a_silent_one_is_asked_once_in_the_time_it_is_left_alone(pauses_s: list[float]) -> None:
    circuit, now_s, asked_s = Circuit(open_s=OPEN_S), 0.0, list[float]()
    for pause_s in pauses_s:
        now_s += pause_s
        if circuit.allows(now_s):
            asked_s.append(now_s)
            circuit.failed(now_s)

    assert all(b - a >= OPEN_S for a, b in pairwise(asked_s))
