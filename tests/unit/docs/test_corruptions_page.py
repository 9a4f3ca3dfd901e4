"""tests/faults/README.md lists the existing corruptions, each with a unique name."""

from __future__ import annotations

from tests.faults.corruptions.page import CASES, with_corruptions
from tests.faults.rows import PAGE


def test_the_table_has_a_line_for_every_corruption_and_no_other() -> None:
    page = PAGE.read_text()

    assert with_corruptions(page) == page, "run `python -m tests.faults.corruptions.page`"


def test_every_corruption_can_be_selected_by_its_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
