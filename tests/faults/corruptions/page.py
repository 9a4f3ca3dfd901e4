"""The table of corruptions in docs/reliability.md.

`python -m tests.faults.corruptions.page` writes it.
"""

from __future__ import annotations

from tests.faults.corruptions import elsewhere, ledger_rows
from tests.faults.corruptions.corruption import Corruption
from tests.faults.rows import PAGE

BEGIN, END = "<!-- corruptions: begin -->", "<!-- corruptions: end -->"
HEAD = ("| Where | What is stored | Outcome | What happens |", "|---|---|---|---|")
CASES: tuple[Corruption, ...] = (*elsewhere.CASES, *ledger_rows.CASES)


def with_corruptions(page: str) -> str:
    """The page with the table of the cases that there are."""
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return "\n".join((before + BEGIN, *HEAD, *(case.line() for case in CASES), END + after))


if __name__ == "__main__":
    PAGE.write_text(with_corruptions(PAGE.read_text()))
