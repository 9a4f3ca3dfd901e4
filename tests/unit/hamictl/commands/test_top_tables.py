"""`top nodes` and `top pods`: sums that are true, order, filters; unknown is never 0."""

from __future__ import annotations

import pytest
from hamictl.commands.top import (
    TABLE_SORTS,
    node_records,
    node_rows,
    pod_records,
    rows_shown,
)
from hamictl.output.records import Form, OutputFormat, Row
from hamictl.output.render import for_programs
from hamictl.output.terminal import Presentation

GIB = 1024**3
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


def shown(rows: list[Row], key: str) -> list[object]:
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
    assert (cells["TROUBLE"], cells["MEASURED"]) == ("1 sick", "1 of 2")


@pytest.mark.parametrize("sort", TABLE_SORTS)
def test_every_order_has_all_rows_and_the_unknown_last(sort: str) -> None:
    pods = [pod("a", used_memory_bytes=None, memory_bytes=GIB, core_ratio=0), pod("b"), pod("c")]
    nodes = node_rows([card("n1", used_memory_bytes=None, held_memory_bytes=0), card("n2")])

    assert sorted(shown(rows_shown(pods, sort=sort), "pod_name"), key=str) == ["a", "b", "c"]
    assert sorted(shown(rows_shown(nodes, sort=sort), "node"), key=str) == ["n1", "n2"]
    if sort != "node":
        assert shown(rows_shown(pods, sort=sort), "pod_name")[-1] == "a"
    if sort in ("memory", "used"):
        assert shown(rows_shown(nodes, sort=sort), "node") == ["n2", "n1"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("nlp/b", ["b"]), ("!nlp/b", ["a", None]), ("N1", ["a", "b", None]), ("else", [])],
)
def test_pods_are_chosen_by_text(text: str, wanted: list[str | None]) -> None:
    rows = rows_shown([pod("a"), pod("b"), pod(None)], filter_text=text)

    assert sorted(shown(rows, "pod_name"), key=str) == sorted(wanted, key=str)


def test_problems_are_nodes_with_a_sick_or_cordoned_card() -> None:
    nodes = node_rows([card("n1"), card("n2", healthy=False), card("n3", cordoned=True)])

    assert shown(rows_shown(nodes, problems=True), "node") == ["n2", "n3"]


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
