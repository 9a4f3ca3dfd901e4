"""The rows of top: bars, holders, order, filters; unknown is never 0."""

from __future__ import annotations

import pytest
from hamictl.commands.top import (
    TABLE_SORTS,
    node_records,
    node_rows,
    pod_records,
    rows_shown,
)
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
from hamictl.output.records import Form, OutputFormat, Row
from hamictl.output.render import for_programs
from hamictl.output.terminal import Presentation
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


# --- `top nodes` and `top pods`: sums that are true, order, filters; unknown is never 0


EVIL = "\x1b[31m<script>{{7*7}}"


def card(node: str = "n1", index: int = 0, **changes: object) -> dict[str, object]:
    return {
        "node": node,
        "card_index": index,
        "type": "NVIDIA A100",
        "memory_bytes": 80 * GIB,
        "held_memory_bytes": 40 * GIB,
        "used_memory_bytes": 20 * GIB,
        "held_core_ratio": 0.6,
        "used_core_ratio": 0.5,
        "held_slot_count": 1,
        "healthy": True,
        "cordoned": False,
    } | changes


def pod(name: str | None, **changes: object) -> dict[str, object]:
    return {
        "namespace": "nlp",
        "pod_name": name,
        "pod_uid": f"uid-{name}",
        "node": "n1",
        "card_count": 1,
        "memory_bytes": 4 * GIB,
        "used_memory_bytes": GIB,
        "core_ratio": 0.3,
        "used_core_ratio": 0.1,
        "sampled_at": "2026-11-20T14:05:00Z",
    } | changes


def column_of(rows: list[Row], key: str) -> list[object]:
    return [row[key] for row in rows]


def test_a_node_is_the_sum_of_its_cards_and_the_mean_of_their_cores() -> None:
    [node] = node_rows([card(), card(index=1, held_slot_count=0, held_core_ratio=0, cordoned=True)])

    assert (node["card_count"], node["held_card_count"], node["cordoned_card_count"]) == (2, 1, 1)
    assert node["memory_bytes"] == 160 * GIB
    assert (node["held_memory_bytes"], node["used_memory_bytes"]) == (80 * GIB, 40 * GIB)
    assert (node["held_core_ratio"], node["used_core_ratio"]) == (0.3, 0.5)


def test_what_is_not_measured_of_one_card_is_not_known_of_the_node() -> None:
    silent = card(index=1, used_memory_bytes=None, used_core_ratio=None, healthy=False)
    [node] = node_rows([card(), silent])

    assert node["used_memory_bytes"] is None
    assert node["used_core_ratio"] is None
    assert (node["measured_card_count"], node["sick_card_count"]) == (1, 1)
    cells = {
        column.header: column.show(node) for column in node_records([node], "2026-11-20").columns
    }
    assert (cells["USED-MEMORY"], cells["USED-CORE"]) == ("?", "?")
    assert (cells["TROUBLE"], cells["MEASURED"]) == ("1 unhealthy", "1 of 2")


@pytest.mark.parametrize("sort", TABLE_SORTS)
def test_every_order_has_all_rows_and_the_unknown_last(sort: str) -> None:
    pods = [pod("a", used_memory_bytes=None, memory_bytes=GIB, core_ratio=0), pod("b"), pod("c")]
    nodes = node_rows([card("n1", used_memory_bytes=None, held_memory_bytes=0), card("n2")])

    assert sorted(column_of(rows_shown(pods, sort=sort), "pod_name"), key=str) == ["a", "b", "c"]
    assert sorted(column_of(rows_shown(nodes, sort=sort), "node"), key=str) == ["n1", "n2"]
    if sort != "node":
        assert column_of(rows_shown(pods, sort=sort), "pod_name")[-1] == "a"
    if sort in ("memory", "used"):
        assert column_of(rows_shown(nodes, sort=sort), "node") == ["n2", "n1"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("nlp/b", ["b"]), ("!nlp/b", ["a", None]), ("N1", ["a", "b", None]), ("else", [])],
)
def test_pods_are_chosen_by_text(text: str, wanted: list[str | None]) -> None:
    rows = rows_shown([pod("a"), pod("b"), pod(None)], filter_text=text)

    assert sorted(column_of(rows, "pod_name"), key=str) == sorted(wanted, key=str)


def test_problems_are_nodes_with_a_sick_or_cordoned_card() -> None:
    nodes = node_rows([card("n1"), card("n2", healthy=False), card("n3", cordoned=True)])

    assert column_of(rows_shown(nodes, problems=True), "node") == ["n2", "n3"]


def test_names_that_may_not_be_read_are_other() -> None:
    records = pod_records([pod(None, namespace=None)], "2026-11-20")
    [row] = records.rows

    assert [column.show(row) for column in records.columns][:2] == ["?", "other"]
    assert records.name(row) == "pod/?/other"


def test_a_hostile_name_reaches_no_terminal_and_no_spreadsheet_as_a_command() -> None:
    records = pod_records([pod(EVIL), pod("=1+1")], "2026-11-20")

    for form in (Form.NAME, Form.JSON):
        text = for_programs(records, OutputFormat(form), Presentation())
        assert "\x1b" not in text
    assert "'=1+1" in for_programs(records, OutputFormat(Form.CSV), Presentation())
