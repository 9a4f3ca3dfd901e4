"""The nodes of before with the cards that were read again."""

from __future__ import annotations

from hami_metrics.pages.domain.refresh import refreshed

from tests.unit.metrics.pages.clusters import a_card, a_holder, a_node

BEFORE = {
    "n1": a_node("n1", a_card(0), a_card(1), a_card(2)),
    "n2": a_node("n2", a_card(0, "n2")),
}
PRESENT = {name: a_node(name) for name in BEFORE}


def test_a_card_that_was_read_again_takes_its_place_and_all_others_stay_as_they_are() -> None:
    held = a_card(1, "n1", a_holder())

    found = refreshed(BEFORE, PRESENT, {held.uuid}, [held])

    assert found["n1"].cards == (a_card(0), held, a_card(2))
    assert found["n1"].cards[0] is BEFORE["n1"].cards[0]
    assert found["n2"] is BEFORE["n2"]


def test_a_node_whose_cards_are_equal_after_all_keeps_them() -> None:
    found = refreshed(BEFORE, PRESENT, {a_card(1).uuid}, [a_card(1)])

    assert found["n1"] is BEFORE["n1"]


def test_a_card_that_is_no_longer_there_leaves_its_node() -> None:
    found = refreshed(BEFORE, PRESENT, {a_card(1).uuid}, [])

    assert found["n1"].cards == (a_card(0), a_card(2))


def test_a_card_that_went_to_another_node_leaves_the_one_where_it_was() -> None:
    moved = a_card(3, "n2", uuid=a_card(1).uuid)

    found = refreshed(BEFORE, PRESENT, {moved.uuid}, [moved])

    assert found["n1"].cards == (a_card(0), a_card(2))
    assert found["n2"].cards == (a_card(0, "n2"), moved)


def test_nodes_come_and_go_and_one_that_was_heard_keeps_its_cards() -> None:
    new = a_node("n3", a_card(0, "n3"))
    present = {"n1": a_node("n1", heard_s=1, group="rack-1"), "n3": new}

    found = refreshed(BEFORE, present, {a_card(0, "n3").uuid}, [a_card(0, "n3")])

    assert list(found) == ["n1", "n3"]
    assert found["n1"] == a_node("n1", heard_s=1, group="rack-1", cards=BEFORE["n1"].cards)
    assert found["n1"].cards is BEFORE["n1"].cards
    assert found["n3"] is new
