"""Buckets of tokens, one for each key."""

from __future__ import annotations

from hamicommon.process.rate_limit import RateLimit
from hypothesis import given
from hypothesis import strategies as st


def test_a_burst_passes_and_then_so_many_a_second() -> None:
    limit = RateLimit(burst=2, per_s=1)

    found = [limit.take("a", at_s=at) for at in (0, 0, 0, 0.5, 1, 1.5)]

    assert found == [0, 0, None, None, 2, None]
    assert limit.take("b", at_s=1.5) == 0


def test_time_that_goes_back_fills_no_bucket() -> None:
    limit = RateLimit(burst=1, per_s=1)

    assert [limit.take("a", at_s=at) for at in (10, 0, 10)] == [0, None, None]


def test_what_was_taken_for_nothing_is_there_again() -> None:
    limit = RateLimit(burst=10, per_s=0)
    assert limit.take("a", 8, at_s=0) == 0
    limit.give_back("a", 8)
    limit.give_back("unknown", 8)

    assert limit.take("a", 10, at_s=0) == 0
    assert limit.take("a", 1, at_s=0) is None


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 4)), max_size=50))
def test_never_more_passes_than_the_burst_and_what_the_time_brings(
    steps: list[tuple[float, float]],
) -> None:
    limit, at_s, taken = RateLimit(burst=4, per_s=2), 0.0, 0.0
    for pause_s, tokens in steps:
        at_s += pause_s
        if limit.take("a", tokens, at_s=at_s) is not None:
            taken += tokens
        assert taken <= 4 + 2 * at_s + 1e-6
