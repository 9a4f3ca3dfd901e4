"""docs/reliability.md has the fault cases that there are, each with its own text."""

from __future__ import annotations

import re

import pytest

from tests.faults import rows


@pytest.fixture(scope="module")
def collected() -> list[rows.Row]:
    return rows.collected()


def test_the_table_has_a_line_for_every_case_and_no_other(collected: list[rows.Row]) -> None:
    page = rows.PAGE.read_text()

    assert rows.with_rows(page, collected, {}) == page, (
        'run `make test-faults ARGS="--update-page -k CASE"` for the cases that changed'
    )


def test_every_line_was_measured(collected: list[rows.Row]) -> None:
    figures = rows.figures_of(rows.PAGE.read_text())

    for row in collected:
        assert re.fullmatch(r"\d+\.\d", figures[row.name]["emulator"]), row.name


def test_the_command_of_a_line_selects_that_case_alone(collected: list[rows.Row]) -> None:
    names = [row.name for row in collected]

    assert [name for name in names if sum(name in other for other in names) > 1] == []


def test_a_new_figure_replaces_its_own_and_leaves_the_others() -> None:
    row = rows.Row(
        name="FAULT-1-a-kill", point="FAULT-1", fault="a", kind="kill", answer="b", promise="SAFE-1"
    )
    other = rows.Row(
        name="FAULT-2-a-kill", point="FAULT-2", fault="a", kind="kill", answer="b", promise="SAFE-1"
    )
    page = rows.with_rows(
        f"before\n{rows.BEGIN}\n{rows.END}\nafter\n",
        [row, other],
        {row.name: {"emulator": "1.0"}, other.name: {"emulator": "2.0", "real": "3.0"}},
    )

    page = rows.with_rows(page, [row, other], {row.name: {"real": "4.0"}})

    assert rows.figures_of(page) == {
        "FAULT-1-a-kill": {"emulator": "1.0", "real": "4.0"},
        "FAULT-2-a-kill": {"emulator": "2.0", "real": "3.0"},
    }
    assert page.startswith("before\n")
    assert page.endswith("after\n")
