"""Vectors of HAMi's feedback loop (protocol 6.4)."""

from hami_node_agent.grants.limits_file import CoreFeedback
from hami_node_agent.usage.feedback_rules import (
    BLOCK_S,
    INTERVAL_S,
    SharingContainer,
    Switches,
    core_feedback,
    decide,
)
from hypothesis import given
from hypothesis import strategies as st


def one(
    name: str,
    *,
    cards: str = "a",
    priority: int = 1,
    recent: int = 2,
    switch: int = 1,
) -> SharingContainer:
    return SharingContainer(
        name=name,
        cards=frozenset(cards),
        priority=priority,
        recent_kernel=recent,
        utilization_switch=switch,
    )


def switches(name: str, recent: int | None = None, switch: int | None = None) -> Switches:
    return Switches(name=name, recent_kernel=recent, utilization_switch=switch)


def test_who_is_alone_is_counted_down_and_freed_of_its_limit() -> None:
    assert decide([one("x")]) == [switches("x", recent=1, switch=0)]
    assert decide([one("x", recent=1, switch=0)]) == [switches("x", recent=0)]
    assert decide([one("x", recent=0, switch=0)]) == []


def test_two_of_one_priority_keep_their_limits_while_both_are_active() -> None:
    assert decide([one("x"), one("y", switch=0)]) == [
        switches("x", recent=1),
        switches("y", recent=1, switch=1),
    ]
    # A count of 1 is 0 after this round: not active any more.
    assert decide([one("x"), one("y", recent=1)]) == [
        switches("x", recent=1, switch=0),
        switches("y", recent=0, switch=0),
    ]


def test_who_comes_after_an_active_one_waits() -> None:
    first, second = one("first", priority=0), one("second", priority=1)

    assert decide([first, second]) == [
        switches("first", recent=1, switch=0),
        switches("second", recent=-1),
    ]


def test_who_waits_goes_on_when_nobody_is_before_it() -> None:
    waiting = one("w", recent=-1)

    assert decide([one("first", priority=0, recent=1), waiting]) == [
        switches("first", recent=0, switch=0),
        switches("w", recent=0, switch=0),
    ]
    assert decide([one("first", priority=0, recent=2, switch=0), waiting]) == [
        switches("first", recent=1)
    ]


def test_others_cards_do_not_matter() -> None:
    assert decide([one("first", priority=0, cards="b"), one("x", cards="ac", recent=0)]) == [
        switches("first", recent=1, switch=0),
        switches("x", switch=0),
    ]


def test_one_shared_card_is_enough_to_wait() -> None:
    changes = decide([one("first", priority=0, cards="b"), one("x", cards="ab")])

    assert switches("x", recent=-1) in changes


_SHARED = st.builds(
    SharingContainer,
    name=st.uuids().map(str),
    cards=st.frozensets(st.sampled_from("abc"), min_size=1),
    priority=st.integers(-1, 2),
    recent_kernel=st.integers(-2, 3),
    utilization_switch=st.integers(0, 1),
)


@given(st.lists(_SHARED, max_size=8, unique_by=lambda shared: shared.name))
def test_nobody_waits_for_ever_and_the_first_never_waits(
    containers: list[SharingContainer],
) -> None:
    """Without launches every count reaches 0, and every wait and every limit ends."""
    now = {shared.name: shared for shared in containers}
    for _ in range(5):
        for change in decide(now.values()):
            old = now[change.name]
            now[change.name] = SharingContainer(
                name=old.name,
                cards=old.cards,
                priority=old.priority,
                recent_kernel=(
                    old.recent_kernel if change.recent_kernel is None else change.recent_kernel
                ),
                utilization_switch=(
                    old.utilization_switch
                    if change.utilization_switch is None
                    else change.utilization_switch
                ),
            )
    assert all((s.recent_kernel, s.utilization_switch) == (0, 0) for s in now.values())
    if containers:
        first = min(shared.priority for shared in containers)
        waits = {change.name for change in decide(containers) if (change.recent_kernel or 0) < 0}
        assert not any(s.name in waits for s in containers if s.priority == first)


def test_what_holds_after_a_round_is_what_was_changed_or_what_was_there() -> None:
    alone, waits = one("x", switch=0, recent=1), one("y", recent=-1)

    def after(one: SharingContainer, switches: Switches | None) -> CoreFeedback:
        return core_feedback(one, switches, now_s=1_800_000_000.5)

    block = CoreFeedback(waits_until_s=1_800_000_000 + BLOCK_S)
    assert after(alone, None) == CoreFeedback(relaxed=True)
    assert after(waits, None) == block
    assert after(one("x"), switches("x", recent=1, switch=0)) == CoreFeedback(relaxed=True)
    assert after(alone, switches("x", recent=-1, switch=1)) == block


def test_a_block_outlives_rounds_that_fail_and_ends_when_the_library_would_end_it() -> None:
    assert 3 * INTERVAL_S < BLOCK_S < 30
