"""The table of corruptions in tests/faults/README.md.

`python -m tests.faults.corruptions.page` writes it.
"""

from __future__ import annotations

from tests.faults.corruptions import elsewhere, ledger_rows
from tests.faults.corruptions.corruption import Corruption
from tests.faults.rows import PAGE

BEGIN, END = "<!-- corruptions: begin -->", "<!-- corruptions: end -->"
HEAD = ("| Outcome | What happens | Where, and what is stored |", "|---|---|---|")
CASES: tuple[Corruption, ...] = (*elsewhere.CASES, *ledger_rows.CASES)


def with_corruptions(page: str) -> str:
    """The page with the table of the cases, one line for those with the same outcome."""
    lines: dict[tuple[str, str], dict[str, list[str]]] = {}
    for case in CASES:
        places = lines.setdefault((case.outcome, case.answer), {})
        places.setdefault(case.where, []).append(case.what)
    table = (
        f"| {outcome} | {answer} | "
        + "; ".join(f"{where}: {', '.join(stored)}" for where, stored in places.items())
        + " |"
        for (outcome, answer), places in lines.items()
    )
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return "\n".join((before + BEGIN, *HEAD, *table, END + after))


if __name__ == "__main__":
    PAGE.write_text(with_corruptions(PAGE.read_text()))
