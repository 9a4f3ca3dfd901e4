"""tests/attempts.md names the test of each row: they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "tests/attempts.md").read_text()
NAMED = re.compile(r"`(tests/[\w/.-]+\.py)(?:::(test_\w+))?`")


def test_every_test_that_a_row_names_exists() -> None:
    named = NAMED.findall(PAGE)

    missing = [
        (file, test)
        for file, test in named
        if not (ROOT / file).exists() or (test and f"def {test}(" not in (ROOT / file).read_text())
    ]

    assert missing == []


def test_every_row_names_a_test_or_states_that_there_is_none() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line]
    heads = [line for line in rows if line.rstrip().endswith("| Test |")]

    without = [
        row for row in rows if row not in heads and not NAMED.search(row) and row[-5:] != "| - |"
    ]

    assert without == []
