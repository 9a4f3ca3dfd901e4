"""When a child that ended is started again: rules, no processes."""

from itertools import accumulate, repeat

from hamilocal.supervisor.supervisor import RestartPolicy

POLICY = RestartPolicy()


def test_pauses_double_and_are_bounded() -> None:
    pauses = [POLICY.pause_s([100.0] * exits) for exits in range(1, 9)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_calm_minute_makes_the_next_pause_short_again() -> None:
    assert POLICY.pause_s([0.0, 1.0, 2.0, 63.0]) == 0.1


def test_twenty_ends_within_ten_minutes_are_enough() -> None:
    exits_s = [turn * 20.0 for turn in range(20)]
    assert POLICY.pause_s(exits_s[:-1]) is not None
    assert POLICY.pause_s(exits_s) is None


def test_a_child_that_dies_now_and_then_is_never_given_up() -> None:
    exits_s = list(accumulate(repeat(31.6, 200)))
    assert all(POLICY.pause_s(exits_s[:count]) is not None for count in range(1, 201))
