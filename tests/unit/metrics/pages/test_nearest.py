"""The nearest card is the engine's own answer, by size: what fits there fits, at the size named."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hami_metrics.pages.cluster import PageCard
from hami_metrics.pages.nearest import (
    SliceSize,
    lack_text,
    nearest,
    nearest_cards,
    nearest_text,
)
from hamicommon.domain.ids import NodeName
from hamicommon.placement.engine import decide
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of
from tests.unit.metrics.pages.clusters import a_card, a_node, a_state

SLOTS, MEMORY_MIB = 4, 8192
Used = tuple[int, int, int]
useds = st.lists(
    st.one_of(
        st.just((0, 0, 0)),
        st.tuples(
            st.integers(1, SLOTS), st.integers(0, MEMORY_MIB), st.sampled_from([0, 30, 80, 100])
        ),
    ),
    min_size=1,
    max_size=4,
)
sizes = st.builds(
    SliceSize,
    count=st.integers(1, 3),
    memory_mib=st.integers(1, MEMORY_MIB),
    memory_ratio=st.none(),
    core_percent=st.sampled_from([0, 10, 50, 100]),
)


def a_size(gib: float, *, count: int = 1, cores: int = 0) -> SliceSize:
    return SliceSize(count=count, memory_mib=int(gib * 1024), memory_ratio=None, core_percent=cores)


def a_used_card(index: int, used: Used) -> PageCard:
    return a_card(
        index,
        slots=SLOTS,
        memory_mib=MEMORY_MIB,
        used_slots=used[0],
        used_memory_mib=used[1],
        used_core_percent=used[2],
    )


def engine_places(used: Sequence[Used], size: SliceSize) -> bool:
    usages = [
        card(f"GPU-n1-{n}", used=one, index=n, slots=SLOTS, memory_mib=MEMORY_MIB)
        for n, one in enumerate(used)
    ]
    wanted = cards(
        memory_mib=size.memory_mib or 0, count=size.count, core_percent=size.core_percent
    )
    answer = decide(pod(wanted), view_of({"n1": usages}), candidates=[NodeName("n1")])
    return answer.placement is not None


@given(used=useds, size=sizes)
def test_what_fits_by_the_page_fits_by_the_engine(used: list[Used], size: SliceSize) -> None:
    state = a_state(a_node("n1", *(a_used_card(n, one) for n, one in enumerate(used))))

    found = nearest(state, size)

    assert found is not None
    assert (found.fitting == size.count) == engine_places(used, size)


@given(used=useds, size=sizes)
def test_the_size_that_is_named_fits_by_the_engine(used: list[Used], size: SliceSize) -> None:
    one = SliceSize(
        count=1, memory_mib=size.memory_mib, memory_ratio=None, core_percent=size.core_percent
    )
    state = a_state(a_node("n1", *(a_used_card(n, each) for n, each in enumerate(used))))

    text = nearest_text(nearest(state, one))

    _, named, change = text.partition("; fits at ")
    if not named:
        return
    memory = re.search(r"([\d.]+) (GiB|MiB)", change)
    cores = re.search(r"(\d+) % cores", change)
    mib = one.memory_mib
    if memory:
        mib = int(float(memory[1]) * (1024 if memory[2] == "GiB" else 1))
    smaller = SliceSize(
        count=1,
        memory_mib=mib,
        memory_ratio=None,
        core_percent=int(cores[1]) if cores else one.core_percent,
    )
    assert not engine_places(used, one), text
    assert engine_places(used, smaller), text


@pytest.mark.parametrize(
    ("nodes", "size", "text"),
    [
        (
            {"n1": [a_card(0, "n1", used_memory_mib=60_000, used_slots=1)]},
            a_size(40),
            "n1 card 0: lacks 18.6 GiB of memory; fits at 21.4 GiB",
        ),
        (
            {
                "n1": [a_card(0, "n1", used_memory_mib=60_000, used_slots=1)],
                "n2": [a_card(3, "n2", used_memory_mib=50_000, used_slots=1)],
            },
            a_size(40),
            "n2 card 3: lacks 8.9 GiB of memory; fits at 31.1 GiB",
        ),
        (
            {"n1": [a_card(0, "n1", used_core_percent=80, used_slots=1)]},
            a_size(1, cores=50),
            "n1 card 0: lacks 30 % of its cores; fits at 20 % cores",
        ),
        (
            {"n1": [a_card(0, "n1", used_slots=10)]},
            a_size(1),
            "n1 card 0: lacks a slot; fits when pods there end",
        ),
        (
            {"n1": [a_card(0, "n1", used_slots=1)]},
            a_size(1, cores=100),
            "n1 card 0: is in use by other pods; fits when pods there end",
        ),
        (
            {"n1": [a_card(n, "n1", used_memory_mib=80_000 * (n % 2)) for n in range(4)]},
            a_size(10, count=4),
            "n1: 2 of 4 cards fit; the next card lacks 8.2 GiB of memory; fits at 1.8 GiB",
        ),
        (
            {"n1": [a_card(0, "n1")]},
            a_size(1),
            "n1 card 0 has room; the pod waits for another reason",
        ),
        (
            {"n1": [a_card(0, "n1", cordoned=True), a_card(1, "n1", healthy=False)]},
            a_size(1),
            "no healthy card that is not cordoned",
        ),
        ({}, a_size(1), "no healthy card that is not cordoned"),
    ],
)
def test_the_text_has_the_least_that_lacks(
    nodes: dict[str, list[PageCard]], size: SliceSize, text: str
) -> None:
    state = a_state(*(a_node(name, *held) for name, held in nodes.items()))

    assert nearest_text(nearest(state, size)) == text


def test_a_node_whose_agent_is_silent_is_no_offer() -> None:
    state = a_state(a_node("n1", a_card(0, "n1"), heard_s=1000))

    assert nearest(state, a_size(1)) is None


def test_a_card_that_fits_is_not_enough_for_a_pod_that_wants_several_of_one_node() -> None:
    [fits] = nearest_cards(a_state(a_node("n1", a_card(0))), a_size(1, count=4), 1)

    assert lack_text(fits) == "has room; the pod waits for another reason"
    assert lack_text(fits, 4) == "has room, but the pod needs 4 cards of one node"
