"""Answers to named questions for people: units by the name of the column, at any width."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hamictl.output import render
from hamictl.output.terminal import Presentation, present
from hamictl.questions import QuestionAnswer
from hamictl.view.named import amount, cell, header_of, records_of
from rich.console import Console

ROWS = [
    {
        "node": "node-1",
        "card_index": 0,
        "memory_bytes": 42949672960,
        "core_ratio": 0.3,
        "used_memory_bytes": None,
        "ended_at": None,
        "healthy": True,
        "decision_s": 0.0041,
        "reason_counts": {"CardInsufficientMemory": 3},
        "pod_uid": "u1",
        "summary": "no card of 12 on 3 nodes has 100000 MiB: the largest has 81920 MiB",
    }
]
ANSWER = QuestionAnswer(
    question="what-runs-where",
    title="Who holds which card?",
    as_of="2026-11-20T14:05:00Z",
    rows=ROWS,
    unknown=frozenset({"used_memory_bytes"}),
    complete=True,
)
AT_200 = """\
NODE    CARD-INDEX  MEMORY  CORE  USED-MEMORY  ENDED  HEALTHY  DECISION  REASON-COUNTS             SUMMARY
node-1  0           40 GiB  30 %  ?            -      yes      4.1 ms    CardInsufficientMemory 3  no card of 12 on 3 nodes has 100000 MiB: the largest has 81920 MiB
"""  # noqa: E501 - a terminal of 200 columns


def at(width: int) -> str:
    records = records_of(ANSWER)
    columns = [column for column in records.columns if not column.wide]
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(render.grid(columns, records.rows, Presentation()))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def test_a_slice_without_a_share_of_cores_may_use_any_and_a_card_has_what_it_has() -> None:
    assert cell("core_ratio", 0) == cell("asked_core_ratio", 0.0) == "any"
    assert cell("used_core_ratio", 0) == "0 %"

    def of_card(held_slot_count: int) -> list[str]:
        row = {"core_ratio": 0, "held_core_ratio": 0, "held_slot_count": held_slot_count}
        found = records_of(replace(ANSWER, question="cards", rows=[row]))
        return [column.show(row) for column in found.columns[:2]]

    assert of_card(1) == ["0 %", "any"]
    assert of_card(0) == ["0 %", "0 %"]


def test_200_columns_hold_a_row_in_a_line() -> None:
    assert at(200) == AT_200


def test_80_columns_fold_what_does_not_fit_and_lose_nothing() -> None:
    shown = at(80)

    assert max(map(len, shown.splitlines())) <= 80
    joined = "".join(shown.split())
    assert all(text[:5] in joined for text in ("node-1", "30%", "4.1ms"))


def test_unknown_is_a_question_mark_and_what_is_not_there_a_dash() -> None:
    [row] = ROWS
    shown = {column.header: column.show(row) for column in records_of(ANSWER).columns}

    assert (shown["USED-MEMORY"], shown["ENDED"]) == ("?", "-")


def test_columns_are_picked_and_those_that_are_seldom_asked_for_are_wide() -> None:
    assert [c.header for c in records_of(ANSWER, columns=("node", "core_ratio")).columns] == [
        "NODE",
        "CORE",
    ]
    assert [c.header for c in records_of(ANSWER).columns if c.wide] == ["POD-UID"]


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("memory_bytes", "MEMORY"),
        ("decision_s", "DECISION"),
        ("pod_name", "POD"),
        ("held_slot_count", "HELD-SLOTS"),
        ("node", "NODE"),
    ],
)
def test_a_header_is_the_column_without_its_unit_and_of_a_number_the_plural(
    name: str, header: str
) -> None:
    assert header_of(name) == header


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("free_bytes", 0, "0 GiB"),
        ("free_bytes", 1536 * 1024 * 1024, "1.5 GiB"),
        ("free_bytes", 5 * 1024 * 1024, "5 MiB"),
        ("share_ratio", 1.25, "125 %"),
        ("owners", [], "-"),
        ("owners", ["a", "b"], "a, b"),
        ("stale", False, "no"),
        ("sick_s", 3661, "1 h 1 min"),
        ("odd_bytes", "text", "text"),
    ],
)
def test_a_cell_has_its_unit(name: str, value: object, shown: str) -> None:
    assert cell(name, value) == shown


def test_an_amount_is_in_gibibytes() -> None:
    assert amount(85899345920) == "80 GiB"


def test_a_pods_row_is_named_so_and_another_by_what_it_is_of() -> None:
    records = records_of(ANSWER)

    assert records.name({"namespace": "a", "pod_name": "b"}) == "pod/a/b"
    assert records.name({"node": "n1"}) == "what-runs-where/n1"
    present(Presentation())
