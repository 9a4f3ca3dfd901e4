"""Groups are placed whole or not at all, and the reason is right: compared with brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.explain.groups import group_sentence
from hamicommon.explain.sentences import stock_of
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.groups import GroupDecision, decide_group
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, idle_nodes, pod, view_of

CARD_MIB = 8000


def member(number: int, memory_mib: int, *, count: int = 1) -> PodRequest:
    name = f"m{number}"
    request = pod(cards(memory_mib=memory_mib, count=count))
    return replace(request, uid=PodUid(name), name=name)


def members(*memory_mib: int) -> list[PodRequest]:
    return [member(number, each) for number, each in enumerate(memory_mib)]


def used_amounts(view: ClusterView) -> list[tuple[int, int, int]]:
    return [
        (each.usage.used_slots, each.usage.used_memory_mib, each.usage.used_core_percent)
        for node in view.nodes
        for each in view.cards(node)
    ]


def sentence(decision: GroupDecision, view: ClusterView) -> str:
    stock = stock_of(each.usage.device for node in view.nodes for each in view.cards(node))
    return group_sentence(decision, stock, candidates=len(view.nodes))


def test_a_group_that_fits_has_a_place_for_each_member_beside_the_others() -> None:
    view = idle_nodes(2)

    decision = decide_group(members(*[6000] * 4), view, needed=4)

    assert decision.fits
    taken = [each.uuid for one in decision.placements.values() for each in one.footprints()]
    assert len(set(taken)) == 4
    assert used_amounts(view) == [(0, 0, 0)] * 4, "the view was not put back"


def test_the_reason_names_how_many_fit_and_what_the_next_one_lacks() -> None:
    full = card("full", used=(1, 4000, 0))
    view = view_of({f"n{number}": [card(f"c{number}")] for number in range(7)} | {"n8": [full]})

    decision = decide_group(members(*[6000] * 8), view, needed=8)

    assert not decision.fits
    assert sentence(decision, view) == (
        "7 of the 8 pods that start together fit, in this order; m7 wants 1 NVIDIA card with "
        "6000 MiB: beside the 7 before it, no card of 8 on 8 nodes has 6000 MiB free: the most "
        "free is 4000 MiB; ask for less, or wait until a pod ends"
    )


def test_the_largest_are_tried_first_when_the_order_fails() -> None:
    view = view_of({"n": [card("a"), card("b")]})
    # Spread over both cards, the small ones leave no whole card.
    mixed = members(3000, 3000, 8000)

    decision = decide_group(mixed, view, needed=3)

    assert decision.fits
    assert decision.members[0].uid == "m2"


def test_more_than_are_needed_are_placed_if_they_fit() -> None:
    view = idle_nodes(1)

    decision = decide_group(members(8000, 8000, 8000), view, needed=1)

    assert decision.fits
    assert list(decision.placements) == ["m0", "m1"]
    assert decision.first_refused is not None


def test_members_go_beyond_the_offered_nodes_but_for_the_one_that_asks() -> None:
    view = idle_nodes(2)
    names = (NodeName("n0"),)
    options = {"needed": 3, "offered": names, "elsewhere": tuple(view.nodes)}

    roaming = decide_group(members(*[8000] * 3), view, **options, asking=PodUid("m0"))
    stuck = decide_group(members(*[8000] * 3), view, **options, asking=PodUid("m2"))

    assert roaming.fits
    assert roaming.placements[PodUid("m0")].node == "n0"
    assert not stuck.fits
    assert PodUid("m2") not in stuck.placements


sizes = st.lists(st.integers(1, 8), min_size=1, max_size=5)


def fits_somehow(free: Sequence[int], wanted: Sequence[int]) -> bool:
    """Brute force: each pod on each card."""
    for places in product(range(len(free)), repeat=len(wanted)):
        taken: Counter[int] = Counter()
        for place, memory in zip(places, wanted, strict=True):
            taken[place] += memory
        if all(taken[place] <= free[place] for place in taken):
            return True
    return False


@given(taken=st.lists(st.integers(0, 8), min_size=1, max_size=4), wanted=sizes)
def test_what_is_reported_of_a_group_is_right_against_brute_force(
    taken: list[int], wanted: list[int]
) -> None:
    nodes = {
        f"n{index}": [card(f"c{index}", used=(1 if each else 0, each * 1000, 0))]
        for index, each in enumerate(taken)
    }
    view = view_of(nodes)
    before = used_amounts(view)
    free = [8 - each for each in taken]

    decision = decide_group(members(*(each * 1000 for each in wanted)), view, needed=len(wanted))

    assert used_amounts(view) == before
    left = dict(zip(nodes, free, strict=True))
    for uid, placement in decision.placements.items():
        left[placement.node] -= wanted[int(uid[1:])]
    assert min(left.values()) >= 0, "members overlap"
    if decision.fits:
        assert fits_somehow(free, wanted)
        return
    refused = decision.first_refused
    assert refused is not None
    # The first that has no place has none beside those before it.
    at = decision.members.index(refused)
    rest = dict(zip(nodes, free, strict=True))
    for each in decision.members[:at]:
        rest[decision.placements[each.uid].node] -= wanted[int(each.uid[1:])]
    asked = wanted[int(refused.uid[1:])]
    assert asked > max(rest.values())
    text = sentence(decision, view)
    assert f"{refused.name} wants 1 NVIDIA card with {asked * 1000} MiB" in text
    assert f"the most free is {max(rest.values()) * 1000} MiB" in text
    if len(set(wanted)) == 1:
        # Of equal members as many fit as can.
        assert len(decision.placements) == sum(each // asked for each in free)


@pytest.mark.parametrize("needed", [1, 2])
def test_a_group_of_pods_with_several_cards_is_one_question_each(needed: int) -> None:
    view = idle_nodes(1)
    group = [member(0, 6000, count=2), member(1, 6000, count=2)]

    decision = decide_group(group, view, needed=needed)

    assert decision.fits is (needed == 1)
    assert set(decision.placements) == {"m0"}
