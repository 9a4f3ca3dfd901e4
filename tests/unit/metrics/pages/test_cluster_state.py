"""The condition of a card, the changes of a cluster, and the sums of the overview."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hami_metrics.pages.cluster import (
    PROBLEMS,
    CardCondition,
    MeasuredUse,
    SumCache,
    changed_nodes,
    cluster_sums,
    condition,
    differing_cards,
    merge_nodes,
    with_known_cards,
)
from hami_metrics.pages.grid import GridStyle, grid_line
from hami_metrics.pages.identity import PageViewer

from tests.unit.metrics.pages.clusters import NOW, a_card, a_holder, a_node, a_state


@pytest.mark.parametrize(
    ("changes", "silent", "expected"),
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
    changes: dict[str, Any], silent: bool, expected: str
) -> None:
    assert condition(a_card(**changes), silent=silent) == expected


def test_a_room_is_no_part_of_what_is_granted() -> None:
    waits = replace(a_holder("ua", memory_mib=40960), state="reserved")
    card = a_card(0, "n1", waits, a_holder("train", memory_mib=61440))
    style = GridStyle(viewer=PageViewer(namespaces=None), named=True)

    assert card.room_mib == 40960
    assert "60 of 80 GiB" in grid_line(a_node("n1", card), style, silent=False)


def test_what_nobody_measured_is_unknown_and_no_zero() -> None:
    sums = cluster_sums(a_state(a_node("n1", a_card(0, "n1", a_holder()))))

    assert (sums.active, sums.effective_percent) == (None, None)
    assert cluster_sums(a_state()).stranded_percent is None


def test_the_funnel_counts_measured_cards_alone() -> None:
    use = {
        "GPU-n1-0": MeasuredUse(memory_mib=1.0, core_percent=80.0, at=NOW),
        "GPU-n1-1": MeasuredUse(memory_mib=1.0, core_percent=0.0, at=NOW),
        "GPU-n1-2": MeasuredUse(memory_mib=1.0, core_percent=None, at=NOW),
    }
    cards = [a_card(n, "n1", a_holder(f"p{n}")) for n in range(4)]
    sums = cluster_sums(a_state(a_node("n1", *cards), use=use))

    assert (sums.cards, sums.held, sums.active) == (4, 4, 1)
    assert sums.effective_percent == 40.0


def test_what_fits_leaves_out_cards_that_no_pod_can_have() -> None:
    cards = [
        a_card(0),
        a_card(1, healthy=False),
        a_card(2, cordoned=True),
        a_card(3, used_slots=9, used_memory_mib=40960),
    ]
    silent = a_node("n2", a_card(0, "n2"), heard_s=80)
    fits = cluster_sums(a_state(a_node("n1", *cards), silent))

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

    assert changed_nodes(before, after) == {"moved", "other", "quiet", "gone", "new"}


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
    known = SumCache()
    node = a_node("n1", a_card(0), a_card(1, "n1", a_holder()), a_card(2, healthy=False))
    first = known.node_sums(node, silent=False)

    assert (first.held, first.count(CardCondition.FREE), first.count(*PROBLEMS)) == (1, 1, 1)
    assert known.node_sums(a_node("n1", heard_s=1, cards=node.cards), silent=False) is first
    assert known.node_sums(node, silent=True).count(*PROBLEMS) == 3
    again = known.node_sums(a_node("n1", a_card(0)), silent=False)
    assert (again.held, again.count(CardCondition.FREE), again.count(*PROBLEMS)) == (0, 1, 0)


def test_a_node_that_is_gone_is_forgotten_and_the_others_are_not() -> None:
    known = SumCache()
    stays, goes = a_node("stays", a_card(0, "stays")), a_node("goes", a_card(0, "goes"))
    of_one, of_other = (known.node_sums(node, silent=False) for node in (stays, goes))

    known.keep({"stays"})

    assert known.node_sums(stays, silent=False) is of_one
    assert known.node_sums(goes, silent=False) is not of_other


def test_sums_that_are_kept_from_one_state_to_the_next_are_those_of_all_cards() -> None:
    known = SumCache()
    same = a_node("same", a_card(0, "same", a_holder()), a_card(1, "same", used_slots=10))
    other = a_node("other", a_card(0, "other", a_holder("b", "vision")), heard_s=70)
    gone = a_node("gone", a_card(0, "gone", a_holder("c", "old"), type="NVIDIA T4"))
    cluster_sums(a_state(same, other, gone), known)
    # One node falls silent, one is new, one is no longer there.
    later = NOW + timedelta(seconds=10)
    after = a_state(
        a_node("same", heard_s=-10, cards=same.cards),
        other,
        a_node("new", *(a_card(n, "new") for n in range(8)), heard_s=-10),
        taken_at=later,
    )

    kept = cluster_sums(after, known)

    assert kept == cluster_sums(after)
    assert (kept.held_mib, kept.models) == ({"nlp": 8192, "vision": 8192}, ["NVIDIA A100"])
    assert (kept.counts[CardCondition.UNKNOWN], kept.counts[CardCondition.FREE]) == (1, 8)
    assert (kept.whole_cards, kept.whole_nodes) == (8, 1)


BEFORE = {
    "n1": a_node("n1", a_card(0), a_card(1), a_card(2)),
    "n2": a_node("n2", a_card(0, "n2")),
}
PRESENT = {name: a_node(name) for name in BEFORE}


def test_a_card_that_was_read_again_takes_its_place_and_all_others_stay_as_they_are() -> None:
    held = a_card(1, "n1", a_holder())

    found = merge_nodes(BEFORE, PRESENT, {held.uuid}, [held])

    assert found["n1"].cards == (a_card(0), held, a_card(2))
    assert found["n1"].cards[0] is BEFORE["n1"].cards[0]
    assert found["n2"] is BEFORE["n2"]


def test_a_node_whose_cards_are_equal_after_all_keeps_them() -> None:
    found = merge_nodes(BEFORE, PRESENT, {a_card(1).uuid}, [a_card(1)])

    assert found["n1"] is BEFORE["n1"]


def test_a_card_that_is_no_longer_there_leaves_its_node() -> None:
    found = merge_nodes(BEFORE, PRESENT, {a_card(1).uuid}, [])

    assert found["n1"].cards == (a_card(0), a_card(2))


def test_a_card_that_went_to_another_node_leaves_the_one_where_it_was() -> None:
    moved = a_card(3, "n2", uuid=a_card(1).uuid)

    found = merge_nodes(BEFORE, PRESENT, {moved.uuid}, [moved])

    assert found["n1"].cards == (a_card(0), a_card(2))
    assert found["n2"].cards == (a_card(0, "n2"), moved)


def test_nodes_come_and_go_and_one_that_was_heard_keeps_its_cards() -> None:
    new = a_node("n3", a_card(0, "n3"))
    present = {"n1": a_node("n1", heard_s=1, group="rack-1"), "n3": new}

    found = merge_nodes(BEFORE, present, {a_card(0, "n3").uuid}, [a_card(0, "n3")])

    assert list(found) == ["n1", "n3"]
    assert found["n1"] == a_node("n1", heard_s=1, group="rack-1", cards=BEFORE["n1"].cards)
    assert found["n1"].cards is BEFORE["n1"].cards
    assert found["n3"] is new


def test_a_card_differs_by_its_holders_its_health_and_by_being_gone() -> None:
    held, other = a_card(0, "n1", a_holder("a")), a_card(1, "n1", a_holder("b"))
    sick, gone = a_card(2, "n1"), a_card(3, "n1")
    same = a_card(4, "n1", a_holder("c"))
    then = a_state(a_node("n1", held, other, sick, gone, same), past=True)
    now = a_state(
        a_node(
            "n1",
            a_card(0, "n1"),
            a_card(1, "n1", a_holder("b", memory_mib=1024)),
            replace(sick, healthy=False, health_reason="xid 79"),
            same,
            # Its silence is known only for the present.
            heard_s=3600,
        )
    )

    found = differing_cards(then, now)

    assert found == {"GPU-n1-0", "GPU-n1-1", "GPU-n1-2", "GPU-n1-3"}
    assert differing_cards(then, then) == frozenset()
