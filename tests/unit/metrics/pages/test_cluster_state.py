"""What a card counts as, and the sums of the overview."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hami_metrics.pages.domain.capacity import NodeTallies, NodeTally, totals
from hami_metrics.pages.domain.cluster import (
    CardCondition,
    MeasuredUse,
    changed_nodes,
    condition,
    with_known_cards,
)

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


@pytest.mark.parametrize(
    ("changes", "unheard", "expected"),
    [
        ({}, False, CardCondition.FREE),
        ({"used_slots": 1, "used_memory_mib": 8192}, False, CardCondition.PARTLY),
        ({"used_slots": 10, "used_memory_mib": 8192}, False, CardCondition.STRANDED),
        ({"used_slots": 1, "used_memory_mib": 1, "used_core_percent": 100}, False, "stranded"),
        ({"used_slots": 10, "used_memory_mib": 81920}, False, CardCondition.FULL),
        ({"used_slots": 1, "used_memory_mib": 90000}, False, CardCondition.FULL),
        ({"cordoned": True}, False, CardCondition.CORDONED),
        ({"healthy": False, "cordoned": True}, False, CardCondition.UNHEALTHY),
        ({"healthy": False}, True, CardCondition.UNKNOWN),
    ],
)
def test_a_card_counts_as_the_worst_that_holds(
    changes: dict[str, Any], unheard: bool, expected: str
) -> None:
    assert condition(a_card(**changes), unheard=unheard) == expected


def test_what_nobody_measured_is_unknown_and_no_zero() -> None:
    sums = totals(a_state(a_node("n1", a_card(0, "n1", a_holder()))))

    assert (sums.funnel.active, sums.funnel.effective_percent) == (None, None)
    assert totals(a_state()).stranded_percent is None


def test_the_funnel_counts_measured_cards_alone() -> None:
    use = {
        "GPU-n1-0": MeasuredUse(memory_mib=1.0, core_percent=80.0, at=NOW),
        "GPU-n1-1": MeasuredUse(memory_mib=1.0, core_percent=0.0, at=NOW),
        "GPU-n1-2": MeasuredUse(memory_mib=1.0, core_percent=None, at=NOW),
    }
    cards = [a_card(n, "n1", a_holder(f"p{n}")) for n in range(4)]
    funnel = totals(a_state(a_node("n1", *cards), use=use)).funnel

    assert (funnel.cards, funnel.held, funnel.active) == (4, 4, 1)
    assert funnel.effective_percent == 40.0


def test_what_fits_leaves_out_cards_that_no_pod_can_have() -> None:
    cards = [
        a_card(0),
        a_card(1, healthy=False),
        a_card(2, cordoned=True),
        a_card(3, used_slots=9, used_memory_mib=40960),
    ]
    silent = a_node("n2", a_card(0, "n2"), heard_s=80)
    fits = totals(a_state(a_node("n1", *cards), silent)).fitting

    # One idle card takes ten slices of 8 GiB, the fourth has one slot left.
    assert dict(fits.slices) == {8: 11, 40: 3}
    assert (fits.whole_cards, fits.whole_nodes) == (1, 0)


def test_a_node_changes_with_its_cards_its_rack_or_when_it_falls_silent() -> None:
    before = a_state(
        a_node("same", a_card(0, "same"), group="rack-1"),
        a_node("moved", a_card(0, "moved"), group="rack-1"),
        a_node("other", a_card(0, "other")),
        a_node("quiet", heard_s=70),
        a_node("gone"),
    )
    later = NOW + timedelta(seconds=10)
    after = a_state(
        a_node("same", a_card(0, "same"), group="rack-1"),
        a_node("moved", a_card(0, "moved"), group="rack-2"),
        a_node("other", a_card(0, "other", a_holder())),
        a_node("quiet", heard_s=70),
        a_node("new"),
        taken_at=later,
    )

    assert changed_nodes(before, after, later) == {"moved", "other", "quiet", "gone", "new"}


def test_cards_that_are_read_again_and_are_the_same_stay_the_same_objects() -> None:
    before = {"n1": a_node("n1", a_card(0)), "n2": a_node("n2", a_card(0, "n2"))}
    fresh = {
        "n1": a_node("n1", a_card(0), heard_s=0, group="rack-1"),
        "n2": a_node("n2", a_card(0, "n2", healthy=False)),
        "n3": a_node("n3", a_card(0, "n3")),
    }

    found = with_known_cards(fresh, before)

    assert found == fresh
    assert found["n1"].cards is before["n1"].cards
    assert found["n1"].group == "rack-1"


def test_a_node_is_counted_again_when_it_changes_and_only_then() -> None:
    tallies = NodeTallies()
    node = a_node("n1", a_card(0), a_card(1, "n1", a_holder()), a_card(2, healthy=False))
    first = tallies.of(node, unheard=False)

    assert (first.held, first.free, first.sick) == (1, 1, 1)
    assert tallies.of(a_node("n1", heard_s=1, cards=node.cards), unheard=False) is first
    assert tallies.of(node, unheard=True).sick == 3
    assert tallies.of(a_node("n1", a_card(0)), unheard=False) == NodeTally(0, 1, 0)


def test_a_node_that_is_gone_is_forgotten_and_the_others_are_not() -> None:
    tallies = NodeTallies()
    stays, goes = a_node("stays", a_card(0, "stays")), a_node("goes", a_card(0, "goes"))
    of_one, of_other = (tallies.of(node, unheard=False) for node in (stays, goes))

    tallies.keep({"stays"})

    assert tallies.of(stays, unheard=False) is of_one
    assert tallies.of(goes, unheard=False) is not of_other


def test_sums_that_are_kept_from_one_state_to_the_next_are_those_of_all_cards() -> None:
    tallies = NodeTallies()
    same = a_node("same", a_card(0, "same", a_holder()), a_card(1, "same", used_slots=10))
    other = a_node("other", a_card(0, "other", a_holder("b", "vision")), heard_s=70)
    gone = a_node("gone", a_card(0, "gone", a_holder("c", "old"), type="NVIDIA T4"))
    totals(a_state(same, other, gone), tallies)
    # One node falls silent, one is new, one is no longer there.
    later = NOW + timedelta(seconds=10)
    after = a_state(
        a_node("same", heard_s=-10, cards=same.cards),
        other,
        a_node("new", *(a_card(n, "new") for n in range(8)), heard_s=-10),
        taken_at=later,
    )

    kept = totals(after, tallies)

    assert kept == totals(after)
    assert (kept.held, kept.models) == ({"nlp": 8192, "vision": 8192}, ["NVIDIA A100"])
    assert (kept.counts[CardCondition.UNKNOWN], kept.counts[CardCondition.FREE]) == (1, 8)
    assert (kept.fitting.whole_cards, kept.fitting.whole_nodes) == (8, 1)
