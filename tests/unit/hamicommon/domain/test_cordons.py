"""Entries of a cordon name cards by index, uuid or its beginning."""

from __future__ import annotations

import pytest
from hamicommon.domain.devices import GpuDevice, find_cordoned

from tests.unit.devices import a_device

FIRST = "GPU-aeeabd1a-207a-2038-9b45-23cac89cb67d"
SECOND = "GPU-aeeabd1b-207a-2038-9b45-23cac89cb67d"


def card(uuid: str, index: int) -> GpuDevice:
    return a_device(uuid, index=index, memory_mib=40960)


CARDS = [card(FIRST, 0), card(SECOND, 1), card("0", 2)]


@pytest.mark.parametrize(
    ("entry", "uuid"),
    [
        pytest.param(FIRST, FIRST, id="whole uuid"),
        pytest.param("GPU-aeeabd1a", FIRST, id="as lists show it"),
        pytest.param("gpu-AEEABD1B", SECOND, id="letters of another size"),
        pytest.param("1", SECOND, id="index"),
        pytest.param("0", "0", id="a uuid counts before an index"),
    ],
)
def test_a_card_is_named_by_its_uuid_the_beginning_of_it_or_its_index(
    entry: str, uuid: str
) -> None:
    found = find_cordoned({entry}, CARDS)

    assert (found.uuids, found.unmatched) == ({uuid}, {})


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("7", "is not a card of this node"),
        ("GPU-ffffffff-0000-0000-0000-000000000000", "is not a card of this node"),
        ("GPU-aee", "the first 8 characters"),
        ("GPU-aeea", "matches 2 cards: write a whole uuid"),
    ],
)
def test_an_entry_that_names_no_card_or_several_closes_none_and_is_named(
    entry: str, why: str
) -> None:
    found = find_cordoned({entry, SECOND}, CARDS)

    assert found.uuids == {SECOND}
    assert entry in found.unmatched[entry]
    assert why in found.unmatched[entry]
