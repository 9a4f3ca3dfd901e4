"""Which part is away is reported once, with what holds all the same; never of the past."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hami_metrics.pages.cluster import MeasuredUse
from hami_metrics.pages.feed import Away, hanging_since, notices

from tests.unit.metrics.pages.clusters import NOW, a_card, a_node, a_state

AGO = NOW - timedelta(minutes=1)
STATE = a_state(a_node("n1", a_card()))


def parts(away: Away) -> list[str]:
    return [notice.part for notice in notices(STATE, away, NOW)]


def test_nothing_is_reported_while_all_parts_are_there() -> None:
    assert notices(STATE, Away(), NOW) == ()


@pytest.mark.parametrize("part", ["scheduler", "events"])
def test_a_part_that_restarts_is_not_away_yet(part: str) -> None:
    assert parts(Away(**{part: NOW - timedelta(seconds=2)})) == []
    assert parts(Away(**{part: NOW - timedelta(seconds=3)})) == [part]


def test_a_scheduler_that_is_connected_and_does_nothing_hangs() -> None:
    [notice] = notices(STATE, Away(scheduler_hangs=AGO), NOW)

    assert notice.part == "scheduler"
    assert "has done nothing since 14:04:00: it hangs" in notice.text
    # Of one that has no connection that is known, and no more.
    [gone] = notices(STATE, Away(scheduler=AGO, scheduler_hangs=AGO), NOW)
    assert gone.text.startswith("No scheduler is connected")


@pytest.mark.parametrize(
    ("quiet_s", "hangs"), [(None, False), (0.0, False), (10.0, False), (11.0, True)]
)
def test_connections_that_are_quiet_for_long_or_of_unknown_use(
    quiet_s: float | None, hangs: bool
) -> None:
    used_at = None if quiet_s is None else NOW - timedelta(seconds=quiet_s)

    assert hanging_since(used_at, NOW) == (used_at if hangs else None)


def test_the_ledger_that_is_away_hides_what_only_it_can_show() -> None:
    [ledger, events] = notices(STATE, Away(ledger=AGO, scheduler=AGO, events=AGO), NOW)
    assert ledger.text.startswith("Ledger unreachable since 14:04:00. Shown: state of 2026-11-20")
    assert events.part == "events"


def test_use_that_is_not_brought_has_the_date_of_the_last() -> None:
    measured = MeasuredUse(memory_mib=1.0, core_percent=None, at=NOW - timedelta(minutes=5))
    state = a_state(a_node("n1", a_card()), use={"GPU-n1-0": measured})
    [known] = notices(state, Away(events=AGO), NOW)
    [never] = notices(STATE, Away(events=AGO), NOW)
    assert "use is of 2026-11-20 14:00:00 UTC" in known.text
    assert "use was never measured" in never.text


def test_silent_agents_are_named_with_when_they_were_heard_the_longest_silent_first() -> None:
    nodes = [a_node(f"n{number}", a_card(), heard_s=100.0 * number) for number in range(1, 6)]
    never = replace(a_node("n9", a_card()), heard_at=None)
    [one] = notices(a_state(*nodes, never), Away(), NOW)
    assert one.part == "agents"
    assert one.text.startswith("6 agents are silent: n9 (never), n5 (heard 2026-11-20 13:56:40 UTC")
    assert " and 3 more." in one.text
    [single] = notices(a_state(nodes[1]), Away(), NOW)
    assert single.text.startswith("1 agent is silent: n2 (heard ")


def test_a_moment_of_the_past_and_a_ledger_that_was_never_read_have_none() -> None:
    assert notices(replace(STATE, past=True), Away(ledger=AGO, events=AGO), NOW) == ()
    assert notices(None, Away(ledger=AGO), NOW) == ()
