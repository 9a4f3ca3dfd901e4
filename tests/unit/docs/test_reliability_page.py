"""tests/faults/README.md has the fault cases that there are, each with its own text."""

from __future__ import annotations

import pytest

from tests.faults import rows


@pytest.fixture(scope="module")
def collected() -> list[rows.Row]:
    return rows.collect_rows()


def test_the_table_has_a_line_for_every_case_and_no_other(collected: list[rows.Row]) -> None:
    page = rows.PAGE.read_text()

    assert rows.with_rows(page, collected) == page, (
        'run `make test-faults ARGS="--update-page -k CASE"` for the cases that changed'
    )


def test_every_case_was_measured_and_no_other(collected: list[rows.Row]) -> None:
    figures = rows.figures()

    assert figures.keys() == {row.name for row in collected}
    assert [name for name, seconds in figures.items() if "emulator" not in seconds] == []


def test_the_command_of_a_line_selects_that_case_alone(collected: list[rows.Row]) -> None:
    names = [row.name for row in collected]

    assert [name for name in names if sum(name in other for other in names) > 1] == []


def make_row(name: str, kind: str = "kill") -> rows.Row:
    return rows.Row(name=name, point="FAULT-1", fault="a", kind=kind, answer="b", promise="SAFE-1")


def test_cases_that_differ_only_in_their_kind_are_one_line() -> None:
    cases = [make_row("FAULT-1-a-kill"), make_row("FAULT-1-a-lose", "lose")]

    page = rows.with_rows(f"before\n{rows.BEGIN}\n{rows.END}\nafter\n", cases)

    assert "| FAULT-1 | a | kill, lose | b | SAFE-1 | `FAULT-1-a` |" in page
    assert page.startswith("before\n")
    assert page.endswith("after\n")


def test_a_new_figure_replaces_its_own_and_leaves_the_others() -> None:
    known = {"a": {"emulator": 1.0}, "b": {"emulator": 2.0, "real": 3.0}, "gone": {"real": 1.0}}
    new = {"b": {"real": 4.0}, "c": {"emulator": 5.0}}

    assert rows.with_figures([make_row("a"), make_row("b"), make_row("c")], known, new) == {
        "a": {"emulator": 1.0},
        "b": {"emulator": 2.0, "real": 4.0},
        "c": {"emulator": 5.0},
    }
