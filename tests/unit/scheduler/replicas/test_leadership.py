"""Which replica answers kube-scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest
from hami_scheduler.replicas.leadership import HEARD_S, MOST_IN_A_ROW, UNFIT_S, LeadingReplica
from hypothesis import given
from hypothesis import strategies as st

STEP_S = st.floats(0.0, 4.0)


class Clock:
    """Is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_is_called_first_leads_and_the_others_forward(clock: Clock) -> None:
    first, second = LeadingReplica("b", clock), LeadingReplica("a", clock)

    assert first.called() == ""
    assert first.leads
    second.heard("b", leads=True)

    assert second.called() == "b"
    assert not second.leads


def test_a_leader_leads_until_calls_come_to_others_alone(clock: Clock) -> None:
    leader = LeadingReplica("a", clock)
    leader.called()

    for _ in range(3):
        for _ in range(MOST_IN_A_ROW - 1):
            leader.forwarded()
        clock.now_s += 1000.0
        assert leader.leads
        leader.called()
    for _ in range(MOST_IN_A_ROW):
        leader.forwarded()
    assert not leader.leads


def test_a_replica_follows_while_it_hears_of_a_leader(clock: Clock) -> None:
    replica = LeadingReplica("b", clock)
    assert not replica.follows

    replica.heard("a", leads=True)
    assert replica.follows
    clock.now_s += HEARD_S
    assert not replica.follows
    replica.called()
    replica.heard("c", leads=True)
    assert not replica.follows


def test_a_leader_that_is_silent_or_lost_or_resigns_is_none(clock: Clock) -> None:
    replica = LeadingReplica("b", clock)

    replica.heard("a", leads=True)
    clock.now_s += HEARD_S
    assert replica.called() == ""
    assert replica.leads

    replica = LeadingReplica("b", clock)
    replica.heard("a", leads=True)
    replica.heard("c", leads=False)
    assert replica.called() == "a"
    replica.heard("a", leads=False)
    assert replica.called() == ""

    replica = LeadingReplica("b", clock)
    replica.heard("a", leads=True)
    replica.lost("a")
    assert replica.called() == ""


def test_of_two_leaders_the_first_by_name_goes_on(clock: Clock) -> None:
    first, second = LeadingReplica("a", clock), LeadingReplica("b", clock)
    first.called()
    second.called()

    assert first.heard("b", leads=True)
    assert second.heard("a", leads=True)

    assert first.leads
    assert not second.leads
    assert second.called() == "a"


def test_its_own_announcement_changes_nothing(clock: Clock) -> None:
    replica = LeadingReplica("a", clock)
    replica.heard("a", leads=True)

    assert replica.called() == ""


def test_who_can_not_decide_answers_alone_and_leads_again_later(clock: Clock) -> None:
    replica = LeadingReplica("a", clock)
    replica.called()
    replica.resign()

    assert not replica.leads
    assert replica.called() == ""
    assert not replica.leads
    replica.heard("b", leads=True)
    assert replica.called() == "b"

    clock.now_s += UNFIT_S
    assert replica.called() == ""
    assert replica.leads


@given(st.lists(st.tuples(STEP_S, st.integers(0, 3), st.sampled_from(("call", "call", "resign")))))
def test_however_calls_come_one_leads_once_all_have_heard(
    steps: Sequence[tuple[float, int, str]],
) -> None:
    clock = Clock()
    replicas = [LeadingReplica(name, clock) for name in "abcd"]
    for step_s, number, what in steps:
        clock.now_s += step_s
        if what == "call":
            replicas[number].called()
        else:
            replicas[number].resign()

    waiting = deque(replicas)
    while waiting:
        sender = waiting.popleft()
        leads = sender.leads
        waiting.extend(each for each in replicas if each.heard(sender.replica, leads=leads))

    leading = [replica for replica in replicas if replica.leads]
    assert len(leading) <= 1
    for replica in replicas:
        asked = replica.called()
        assert not leading or asked == ("" if replica.leads else leading[0].replica)
