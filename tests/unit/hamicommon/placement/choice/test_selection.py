"""The choice among connected cards."""

import numpy as np
from hamicommon.placement.choice.selection import best_connected, walk_numa
from hamicommon.placement.rules import Rule


def test_without_scores_the_most_preferred_are_taken() -> None:
    assert best_connected((3, 1, 2), 2, None) == (3, 1)


def test_the_first_of_equally_connected_sets_is_taken() -> None:
    assert best_connected((3, 1, 2), 2, np.zeros((4, 4), np.int64)) == (3, 1)


def test_a_large_set_is_grown_from_its_best_pair() -> None:
    size = 24
    pairs = np.ones((size, size), np.int64)
    island = [1, 5, 6, 8, 11, 13, 17, 19, 20, 21, 22, 23]
    pairs[np.ix_(island, island)] = 50

    assert list(best_connected(tuple(range(size)), 12, pairs)) == island


def test_a_large_set_without_any_connection_is_still_a_set() -> None:
    found = best_connected(tuple(range(24)), 12, np.zeros((24, 24), np.int64))
    assert len(set(found)) == 12


def test_a_card_of_another_vendor_does_not_end_a_numa_group() -> None:
    codes = np.array([[Rule.FITS, Rule.NO_CARD, Rule.FITS]], np.uint8)

    walk = walk_numa(codes, np.array([[0, 1, 2]]), np.array([[0, 1, 0]]), 2, all_of=False)
    assert walk.places[0, : walk.found[0]].tolist() == [2, 0]
    assert walk.dropped.tolist() == [0]


def test_under_the_topology_choice_the_last_numa_group_decides() -> None:
    """HAMi's rule: a group that is enough is dropped, too, when another one follows."""
    fits, full = Rule.FITS, Rule.MEMORY
    codes = np.array([[fits, fits, fits, fits], [full, fits, fits, fits]], np.uint8)
    order, numa = np.array([[0, 1, 2, 3]] * 2), np.array([[0, 0, 1, 1]] * 2)

    walk = walk_numa(codes, order, numa, 2, all_of=True)
    assert walk.places[0, : walk.found[0]].tolist() == [1, 0]
    assert walk.found.tolist() == [2, 1]
    assert walk.dropped.tolist() == [0, 0]

    early = walk_numa(codes, order, numa, 2, all_of=False)
    assert [row[:2] for row in early.places.tolist()] == [[3, 2], [3, 2]]
