"""A day of ordinary churn without a false alarm, and the same day with those who cheat."""

from __future__ import annotations

import pytest

from tests import measured
from tests.unit.node_agent.enforcement.churn import LOOK_S, Day

LOOKS_OF_A_DAY = int(24 * 3600 / LOOK_S)


def a_day(day: Day, looks: int, actions: int) -> None:
    """`actions` between two looks; now and then the driver hangs and the agent starts again."""
    for number in range(looks):
        day.step(actions)
        if number % 500 == 499:
            day.restart()
        day.look(hiccup=day.random.random() < 0.01)


def test_an_hour_of_churn_has_no_false_alarm() -> None:
    day = Day(0)
    a_day(day, 720, 6)
    assert day.found == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
def test_a_hundred_thousand_allocations_and_ends_have_no_false_alarm(seed: int) -> None:
    day = Day(seed)
    a_day(day, LOOKS_OF_A_DAY, 6)
    measured.note(f"{day.changes} changes in {LOOKS_OF_A_DAY} looks: {len(day.found)} false alarms")
    assert day.changes >= 100_000
    assert day.found == {}


@pytest.mark.parametrize("seed", range(4))
def test_who_cheats_is_seen_within_half_a_minute_and_nobody_else(seed: int) -> None:
    day = Day(seed)
    a_day(day, 40, 6)
    cheats = {each.key: each for each in day.attackers()}
    a_day(day, 12, 6)
    seen = {key.owner: at for key, (_, at) in day.found.items()}
    assert set(seen) == set(cheats)
    for owner, tenant in cheats.items():
        assert seen[owner] - tenant.hostile_since < 30, tenant.hostile
