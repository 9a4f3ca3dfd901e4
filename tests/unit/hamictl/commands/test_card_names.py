"""A card is named by its uuid, by the beginning of one, or by its node and index."""

from __future__ import annotations

import pytest
from hamicommon.errors import InvalidRequest, NotFound
from hamictl.commands.named import chosen

CARDS = [
    {"device_uuid": "GPU-4698e9ba-1", "card_index": 0},
    {"device_uuid": "GPU-4698ffff-2", "card_index": 1},
    {"device_uuid": "GPU-116ecea7-3", "card_index": 2},
]


@pytest.mark.parametrize(
    ("name", "index", "uuid"),
    [
        ("GPU-116ecea7-3", "", "GPU-116ecea7-3"),
        ("GPU-116", "", "GPU-116ecea7-3"),
        ("gpu-4698E9", "", "GPU-4698e9ba-1"),
        ("n1/1", "1", "GPU-4698ffff-2"),
    ],
)
def test_one_card_has_the_name(name: str, index: str, uuid: str) -> None:
    assert chosen(CARDS, name, index) == uuid


def test_a_whole_name_is_one_card_where_another_begins_so() -> None:
    cards = [{"device_uuid": f"{n}@worker-1{more}", "card_index": 0} for n in "01" for more in "01"]
    named = [*cards, {"device_uuid": "0@worker-1", "card_index": 0}]
    assert chosen(named, "0@worker-1", "") == "0@worker-1"


def test_several_that_begin_alike_are_named() -> None:
    with pytest.raises(InvalidRequest, match="2 cards begin with GPU-4698, such as GPU-4698e9ba-1"):
        chosen(CARDS, "GPU-4698", "")


@pytest.mark.parametrize(("name", "index"), [("GPU-9", ""), ("GPU", "")])
def test_a_name_that_none_has_is_not_found(name: str, index: str) -> None:
    with pytest.raises(NotFound, match="hamictl get devices"):
        chosen(CARDS, name, index)


@pytest.mark.parametrize(
    ("cards", "named"),
    [(CARDS, "cards 0 to 2"), (CARDS[:1], "card 0 alone"), (CARDS[::2], "cards 0, 2")],
)
def test_of_an_index_that_a_node_lacks_those_it_has_are_named(
    cards: list[dict[str, object]], named: str
) -> None:
    with pytest.raises(NotFound, match=f"there is no card n1/7: n1 has {named}$"):
        chosen(cards, "n1/7", "7")
