"""Judgements over time: grace, two looks, calm, gaps, changed grants."""

from __future__ import annotations

from collections.abc import Sequence

from hami_node_agent.enforcement.judgement import Judgement, LimitKey
from hami_node_agent.enforcement.periods import Standing, Timing, advance
from hamicommon.domain.granted_cards import LimitState
from hypothesis import given
from hypothesis import strategies as st

KEY = LimitKey("pod-1", "main", "GPU-a")
TIMING = Timing(grace_s=10.0)
GOOD, UNKNOWN, PAST, OVER = (
    LimitState.ENFORCED,
    LimitState.UNKNOWN,
    LimitState.BYPASSED,
    LimitState.EXCEEDED,
)


def so(state: LimitState, held_mib: int = 100, granted_mib: int = 4096) -> Judgement:
    return Judgement(state=state, granted_mib=granted_mib, held_mib=held_mib)


def after(
    *looks: tuple[float, Judgement | LimitState | None], gone_at: float | None = None
) -> list[Standing | None]:
    """Return the periods after each look (seconds, finding; None: no finding)."""
    standings: dict[LimitKey, Standing] = {}
    found: list[Standing | None] = []
    for now_s, judgement in looks:
        judged = so(judgement) if isinstance(judgement, LimitState) else judgement
        standings = advance(
            standings,
            {} if judged is None else {KEY: judged},
            now_s=now_s,
            timing=TIMING,
            gone=frozenset({"pod-1"}) if now_s == gone_at else frozenset(),
        )
        found.append(standings.get(KEY))
    return found


def states(*looks: tuple[float, Judgement | LimitState | None]) -> list[LimitState | None]:
    return [None if each is None else each.state for each in after(*looks)]


def every(seconds: float, judgements: Sequence[LimitState]) -> list[tuple[float, LimitState]]:
    return [(number * seconds, state) for number, state in enumerate(judgements)]


def test_it_is_beyond_its_grant_after_the_grace_period_since_the_first_look() -> None:
    found = after(*every(5, [GOOD, OVER, OVER, OVER]))
    assert [each and each.state for each in found] == [GOOD, GOOD, GOOD, OVER]
    assert found[-1] is not None
    assert (found[-1].since_s, found[-1].violating) == (5, True)


def test_one_look_is_not_enough_however_long_ago() -> None:
    assert states((0, GOOD), (29, OVER)) == [GOOD, GOOD]


def test_what_began_badly_is_not_shown_until_it_is_sure() -> None:
    assert states(*every(5, [OVER, OVER, OVER])) == [None, None, OVER]
    assert states(*every(5, [OVER, GOOD])) == [None, GOOD]


def test_it_gets_better_after_a_calm_and_the_period_ends_when_that_began() -> None:
    looks = every(5, [OVER] * 3 + [GOOD] * 8)
    found = after(*looks)
    assert [each and each.state for each in found[2:9]] == [OVER] * 7
    assert found[8] is not None
    assert not found[8].violating
    assert found[9] is not None
    assert (found[9].state, found[9].since_s) == (GOOD, 15)


def test_who_pauses_now_and_then_does_not_escape() -> None:
    seen = states(*every(5, [GOOD] + [OVER, OVER, GOOD] * 6))
    assert seen[-1] is OVER
    assert OVER not in states(*every(5, [GOOD] + [OVER, GOOD, GOOD] * 20))


def test_who_exceeds_again_within_the_calm_has_one_period() -> None:
    found = after(*every(5, [OVER] * 3 + [GOOD] * 4 + [OVER] * 3))
    assert {each.since_s for each in found[2:] if each} == {0}
    assert found[-1] is not None
    assert found[-1].state is OVER


def test_the_worst_that_lasted_counts() -> None:
    assert states(*every(5, [UNKNOWN, PAST, OVER, OVER, OVER]))[2:] == [UNKNOWN, PAST, OVER]


def test_a_gap_between_looks_proves_nothing() -> None:
    assert states((0, OVER), (100, OVER), (105, OVER), (110, OVER)) == [None, None, None, OVER]


def test_another_grant_begins_another_grace_period() -> None:
    over = so(OVER, 3000, granted_mib=2000)
    found = states((0, GOOD), (5, over), (10, so(OVER, 3000, 1000)), (15, so(OVER, 3000, 1000)))
    assert found == [GOOD] * 4


def test_a_container_that_is_gone_is_forgotten() -> None:
    over = [(0.0, OVER), (5.0, OVER), (10.0, OVER)]
    assert after(*over, (15.0, None), gone_at=15.0)[-1] is None
    kept = after(*over, *((15.0 + 5 * number, None) for number in range(8)))
    assert kept[3] is not None
    assert kept[3].state is OVER
    assert kept[-1] is None


def test_the_peak_is_the_most_of_the_period() -> None:
    found = after(
        *(
            (5.0 * number, so(OVER, mib))
            for number, mib in enumerate((9000, 5000, 5000, 7000, 6000))
        )
    )
    assert found[-1] is not None
    assert found[-1].peak_mib == 7000


@given(st.lists(st.tuples(st.floats(0.1, 60), st.sampled_from([GOOD, UNKNOWN])), max_size=40))
def test_no_violation_without_one(steps: list[tuple[float, LimitState]]) -> None:
    now_s, looks = 0.0, []
    for step_s, state in steps:
        now_s += step_s
        looks.append((now_s, state))
    assert not any(state is not None and state.violates for state in states(*looks))


@given(st.lists(st.sampled_from([GOOD, UNKNOWN, PAST, OVER]), min_size=1, max_size=60))
def test_a_state_is_never_worse_than_anything_found_in_its_period(
    judgements: list[LimitState],
) -> None:
    found = after(*every(5, judgements))
    for number, standing in enumerate(found):
        if standing is None or standing.state is None or standing.state is GOOD:
            continue
        first = next(n for n in range(number + 1) if n * 5 >= standing.since_s)
        worst = max(state.severity for state in judgements[first : number + 1])
        assert worst >= standing.state.severity
