"""The graph of eight Kunlun cards, by protocol 1.9."""

import pytest
from hamicommon.vendors.kunlun import PAIRS, QUADS, bubbles, choose
from hypothesis import given
from hypothesis import strategies as st


def choose_free(free: set[int], count: int) -> tuple[int, ...]:
    return choose(range(8), [index in free for index in range(8)], count)


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 8, (0, 1, 2, 3, 4, 5, 6, 7), id="8: all"),
        pytest.param({0, 1, 2, 3, 4, 5, 6}, 8, (), id="8: one is in use"),
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 1, (0,), id="1: four are free left"),
        pytest.param({1, 2, 3, 4, 5, 6, 7}, 1, (1,), id="1: three are better than four"),
        pytest.param({2, 4, 5, 6, 7}, 1, (2,), id="1: a wing with one is best"),
        pytest.param({0, 1, 2, 3, 6}, 1, (6,), id="1: a wing with one, right"),
        pytest.param({0, 1, 2, 3, 6, 7}, 1, (6,), id="1: two are better than four"),
        pytest.param({0, 1, 4, 5, 6, 7}, 1, (0,), id="1: two left before four right"),
        pytest.param({0, 1, 5, 6, 7}, 1, (5,), id="1: three are better than two"),
        pytest.param(set(), 1, (), id="1: none is free"),
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 2, (0, 1), id="2: left of four"),
        pytest.param({0, 1, 2, 3, 5, 7}, 2, (5, 7), id="2: a wing with two is best"),
        pytest.param({1, 2, 3, 4, 5, 6, 7}, 2, (1, 2), id="2: three are better than four"),
        pytest.param({1, 5}, 2, (1, 5), id="2: a linked pair across"),
        pytest.param({1, 4}, 2, (), id="2: no link across"),
        pytest.param({0, 1, 2, 3, 4, 5, 6}, 4, (0, 1, 2, 3), id="4: left wing"),
        pytest.param({0, 4, 5, 6, 7}, 4, (4, 5, 6, 7), id="4: right wing"),
        pytest.param({0, 1, 4, 5}, 4, (0, 1, 4, 5), id="4: four free make a quad"),
        pytest.param({1, 2, 5, 6, 7}, 4, (1, 2, 5, 6), id="4: five free, the first whole quad"),
        pytest.param({0, 1, 2, 4, 5, 6}, 4, (0, 1, 4, 5), id="4: six free, the rest is linked"),
        pytest.param(
            {0, 1, 2, 4, 5, 7},
            4,
            (0, 1, 4, 5),
            id="4: six free, the first quad leaves 2 and 7 apart: no other",
        ),
        pytest.param({0, 1, 2, 5, 6, 7}, 4, (1, 2, 5, 6), id="4: six free, one quad fits"),
        pytest.param({0, 1, 4, 6}, 4, (), id="4: no quad"),
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 3, (), id="3 never fits"),
        pytest.param({0, 1, 2, 3, 4, 5, 6, 7}, 5, (), id="5 never fits"),
    ],
)
def test_cards_that_go_together_are_taken(free, count, expected) -> None:
    assert choose_free(free, count) == expected


def test_wings_are_positions_and_links_across_are_indexes() -> None:
    indexes = (5, 0, 1, 2, 3, 4, 6, 7)

    assert choose(indexes, [False] + [True] * 7, 1) == (1,)
    assert choose(indexes, [False, True, False, False, False, True, False, False], 2) == (1, 5)


def test_cards_behind_the_eighth_belong_to_the_right_wing() -> None:
    assert choose(range(10), [False] * 8 + [True, True], 2) == (8, 9)
    assert choose(range(10), [False] * 8 + [True, True], 8) == ()


@given(st.sets(st.integers(0, 7)), st.sampled_from([1, 2, 4, 8]))
def test_what_is_taken_is_free_and_as_many_as_wanted(free, count) -> None:
    found = choose_free(free, count)

    assert len(found) in (0, count)
    assert set(found) <= free
    assert len(set(found)) == len(found)
    if {position // 4 for position in found} == {0, 1} and count < 8:
        assert tuple(found) in (*PAIRS, *QUADS)


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (set(), 1),
        ({0}, 3),
        ({0, 1}, 2),
        ({0, 4}, 4),
        ({0, 1, 2, 3}, 1),
        ({0, 1, 2, 3, 4}, 2),
        (set(range(8)), 0),
    ],
    ids=str,
)
def test_bubbles_of_both_wings_add_up(used, expected) -> None:
    assert bubbles(used) == expected
