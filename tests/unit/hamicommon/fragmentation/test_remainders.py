"""The dearest slices that fit into the rest of a card, for one amount and for two."""

from itertools import product

import numpy as np
import pytest
from hamicommon.domain.requests import DeviceRequest
from hamicommon.fragmentation.remainders import (
    CARD,
    Cuts,
    lost_by_both,
    lost_by_one,
)
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.engine import place
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters

sizes = st.integers(1, CARD)
# At most four of a kind fit, so that all ways of cutting can be tried.
large = st.integers(20, CARD)
kinds = st.lists(
    st.tuples(large, large, st.integers(1, 50)), min_size=1, max_size=3, unique_by=lambda k: k[:2]
)


def columns(
    found: list[tuple[int, int, int]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cores, memories, prices = (np.array(column) for column in zip(*found, strict=True))
    return cores, memories, prices / CARD


@settings(max_examples=30)
@given(kinds, st.integers(0, CARD), st.integers(0, CARD))
def test_no_way_of_cutting_is_worth_more(
    found: list[tuple[int, int, int]], core: int, memory: int
) -> None:
    cores, memories, prices = columns(found)
    best = max(
        float(np.array(slices) @ prices)
        for slices in product(range(6), repeat=len(found))
        if np.array(slices) @ cores <= core and np.array(slices) @ memories <= memory
    )

    assert Cuts(cores, memories).worth(prices)[core, memory] == pytest.approx(best)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(sizes, sizes, st.integers(0, 50)),
        min_size=1,
        max_size=8,
        unique_by=lambda kind: kind[:2],
    )
)
def test_the_dearest_slices_fit_on_a_card_and_cost_what_it_is_worth(
    found: list[tuple[int, int, int]],
) -> None:
    cores, memories, prices = columns(found)
    cuts = Cuts(cores, memories)
    worth, slices = cuts.best(prices)

    assert slices @ cores <= CARD
    assert slices @ memories <= CARD
    assert slices @ prices == pytest.approx(worth)
    assert worth == cuts.worth(prices)[CARD, CARD]


@settings(max_examples=20)
@given(st.lists(st.tuples(sizes, st.integers(0, 50)), min_size=1, max_size=8))
def test_slices_of_two_equal_amounts_are_cut_as_those_of_one(
    found: list[tuple[int, int]],
) -> None:
    one = {size: price / CARD for size, price in found}
    each, prices = np.array(list(one)), np.array(list(one.values()))
    both = Cuts(each, each).worth(prices)
    alone = Cuts(each, np.zeros_like(each)).worth(prices)[:, 0]

    assert both == pytest.approx(alone[np.minimum.outer(np.arange(CARD + 1), np.arange(CARD + 1))])


def test_what_is_left_for_a_slice_of_memory_is_not_lost_with_few_cores() -> None:
    cores, memories = np.array([60, 20]), np.array([20, 60])
    lost = lost_by_both(cores, memories, np.array([0.5, 0.5]), 0.5)

    # Beside a slice of cores one of memory fits, and two of a kind do not.
    assert lost[40, 80] < 300
    assert lost[80, 40] < 300
    assert lost[40, 40] == pytest.approx(400)
    assert lost_by_one(np.array([60]), np.array([1.0]))[40] == pytest.approx(400)


@settings(max_examples=20)
@given(kinds, st.floats(0, 1))
def test_no_remainder_loses_more_than_it_is(
    found: list[tuple[int, int, int]], core_weight: float
) -> None:
    cores, memories, shares = columns(found)
    lost = lost_by_both(cores, memories, shares / shares.sum(), core_weight)
    percent = 10 * np.arange(CARD + 1)

    assert (lost >= 0).all()
    assert (lost <= core_weight * percent[:, None] + (1 - core_weight) * percent + 1e-6).all()
    assert lost[CARD, CARD] == pytest.approx(0, abs=1e-6)


def test_a_small_slice_does_not_part_two_that_complete_each_other() -> None:
    of_cores, of_memory, small = (
        DeviceRequest(vendor="NVIDIA", count=1, memory_percent=memory, core_percent=core)
        for core, memory in ((60, 20), (20, 60), (20, 20))
    )
    view = clusters.view_of(
        {
            # One of cores and a small one: 20 % of the cores and 60 % of the memory are left.
            "a": [clusters.card("a", used=(2, 3200, 80), memory_mib=8000)],
            "b": [clusters.card("b", memory_mib=8000)],
        }
    )
    view.usual.give(Mix.of(PodShape(request=each) for each in (of_cores, of_memory, small)))

    for wanted, node in ((small, "b"), (of_memory, "a")):
        pod = clusters.pod(wanted, node="fragmentation", gpu=("fragmentation",))
        assert getattr(place(pod, view), "node", None) == node
