"""The rows of top: bars, holders, order, filters; unknown is never 0."""

from __future__ import annotations

import pytest
from hamictl.commands.top_rows import (
    BAR,
    SORTS,
    TopCard,
    bar,
    chosen,
    cores,
    heading,
    holders,
    memory,
    top_look,
    top_records,
)
from hypothesis import given
from hypothesis import strategies as st

GIB = 1024**3


def card_row(index: int = 0, **changes: object) -> dict[str, object]:
    return {
        "node": "n1",
        "card_index": index,
        "device_uuid": f"GPU-{index}",
        "type": "NVIDIA A100-80G",
        "memory_bytes": 80 * GIB,
        "held_memory_bytes": 40 * GIB,
        "used_memory_bytes": 20 * GIB,
        "held_core_ratio": 0.6,
        "used_core_ratio": 0.48,
        "healthy": True,
        "health_reason": "",
        "cordoned": False,
    } | changes


def slice_row(pod: str | None, gib: int, card: int = 0) -> dict[str, object]:
    return {
        "namespace": None if pod is None else "nlp",
        "pod_name": pod,
        "device_uuid": f"GPU-{card}",
        "memory_bytes": gib * GIB,
    }


SICK = card_row(
    1,
    healthy=False,
    health_reason="xid 79",
    held_memory_bytes=0,
    used_memory_bytes=None,
    used_core_ratio=None,
)
SLICES = [slice_row("small", 2), slice_row("big", 28), slice_row("small", 3), slice_row(None, 1)]
LOOK = top_look(
    [card_row(), SICK], SLICES, [{"pod_count": 3}, {"pod_count": 1}], as_of="2026-11-20T14:05:00Z"
)


def test_a_card_has_its_holders_with_the_largest_first_and_withheld_names_as_such() -> None:
    [card, sick] = LOOK.cards

    assert card.holders == (("nlp/big", 28 * GIB), ("nlp/small", 5 * GIB), ("?/other", GIB))
    assert holders(card) == "nlp/big 28 GiB, nlp/small 5 GiB, ?/other 1 GiB"
    assert holders(sick) == "✖ xid 79"
    assert heading(LOOK) == "hami · 1 nodes · 2 cards · 1 held · 4 waiting"


def test_granted_and_used_stand_beside_each_other_and_unknown_is_a_question_mark() -> None:
    [card, sick] = LOOK.cards

    assert (memory(card), cores(card)) == ("40|20/80 GiB", "60|48 %")
    assert (memory(sick), cores(sick)) == ("0|?/80 GiB", "60|? %")
    assert bar(card) == "[▓▓▓▓░░░·······]"


@given(
    size=st.integers(0, 10**12),
    held=st.integers(0, 10**13),
    used=st.none() | st.integers(0, 10**13),
)
def test_a_bar_always_has_its_width(size: int, held: int, used: int | None) -> None:
    row = card_row(memory_bytes=size, held_memory_bytes=held, used_memory_bytes=used)
    [card] = top_look([row], [], [], as_of="").cards

    assert len(bar(card)) == BAR + 2


def uuids(cards: list[TopCard]) -> list[str]:
    return [card.uuid for card in cards]


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ({}, ["GPU-0", "GPU-1"]),
        ({"problems": True}, ["GPU-1"]),
        ({"filter_text": "NLP/big"}, ["GPU-0"]),
        ({"filter_text": "!nlp/"}, ["GPU-1"]),
        ({"filter_text": "nothing"}, []),
        ({"filter_text": "xid"}, ["GPU-1"]),
        ({"sort": "used"}, ["GPU-0", "GPU-1"]),
    ],
)
def test_rows_are_chosen(how: dict[str, object], wanted: list[str]) -> None:
    assert uuids(chosen(LOOK, **how)) == wanted  # type: ignore[arg-type] # each case has its own


def test_every_order_has_all_cards() -> None:
    for sort in SORTS.values():
        assert sorted(uuids(chosen(LOOK, sort=sort))) == ["GPU-0", "GPU-1"]
    many = [card_row(n, held_memory_bytes=n * GIB) for n in range(5)]
    look = top_look(many, [], [], as_of="")
    assert uuids(chosen(look, sort="memory"))[0] == "GPU-4"


def test_rows_for_programs_have_base_units_and_null_for_unknown() -> None:
    [_, row] = top_records(LOOK, LOOK.cards).rows

    assert (row["used_memory_bytes"], row["used_core_ratio"], row["trouble"]) == (
        None,
        None,
        "✖ xid 79",
    )
