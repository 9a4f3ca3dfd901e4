"""The rows of docs/reliability.md: each case of this folder is one, with what it measured.

Each has its row: `@pytest.mark.row(point=..., fault=..., kind=..., answer=..., promise=...)`
on the function, on the parameter, or in parts on both. The page's table is between two markers;
`make test-faults ARGS=--update-page` writes it, and `tests/unit/docs/test_reliability_page.py`
fails when it is not of the cases that there are.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
HEAD = (
    "| Point | Fault | Kind | What happens | Promise | Cases, s |",
    "|---|---|---|---|---|---|",
)
KINDS = ("kill", "error", "delay", "duplicate", "reorder", "lose")
NOT_RUN = "-"
CASE = re.compile(r"`([^`]+)` (\d+\.\d|-)(?: \((\d+\.\d)\))?(?=, `| \|$)", re.MULTILINE)
"""A case's name with its seconds on the emulator and, in brackets, on a real control plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault at one point."""

    name: str
    """What `-k` selects, for example `FAULT-8-store.commit.after-kill`."""
    point: str
    """Of the survey (FAULT-1 .. FAULT-45), several with spaces between, or a promise: SAFE-1."""
    fault: str
    kind: str
    answer: str
    """What the system does."""
    promise: str
    """Of architecture 6."""

    def case(self, figures: Mapping[str, str]) -> str:
        """The case's name with its seconds; `figures` are by kind of cluster."""
        real = figures.get("real", NOT_RUN)
        shown = "" if real == NOT_RUN else f" ({real})"
        return f"`{self.name}` {figures.get('emulator', NOT_RUN)}{shown}"


def row_of(item: pytest.Item) -> Row:
    """The row of the case's marks; the mark that is closest to the case wins.

    Raises: pytest.UsageError when something is missing.
    """
    found: dict[str, str] = {}
    for mark in item.iter_markers("row"):
        found = {**mark.kwargs, **found}
    missing = {"point", "fault", "kind", "answer", "promise"} - found.keys()
    if missing:
        raise pytest.UsageError(f"{item.nodeid}: its row lacks {', '.join(sorted(missing))}")
    if found["kind"] not in KINDS:
        raise pytest.UsageError(f"{item.nodeid}: kind {found['kind']}: one of {KINDS} is wanted")
    inner = item.name.partition("[")[2].removesuffix("]")
    return Row(name=inner if "-" in inner else item.name, **found)


def collected() -> list[Row]:
    """The rows of all cases that there are, from a collection in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        options = ["-q", "--collect-only", "--slow", "-p", "no:cacheprovider", "--rows", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)],
            cwd=PAGE.parents[1],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return from_json(file.read_text())


def to_json(rows: Iterable[Row]) -> str:
    """For the process that collects the cases without running them."""
    return json.dumps([asdict(row) for row in rows])


def from_json(text: str) -> list[Row]:
    """The inverse."""
    return [Row(**fields) for fields in json.loads(text)]


def figures_of(page: str) -> dict[str, dict[str, str]]:
    """The seconds that the page has, by the row's name and the kind of cluster."""
    return {
        name: {"emulator": emulator, "real": real or NOT_RUN}
        for name, emulator, real in CASE.findall(page.partition(BEGIN)[2].partition(END)[0])
    }


def with_rows(page: str, rows: Iterable[Row], figures: Mapping[str, Mapping[str, str]]) -> str:
    """The page with this table in it, one line for the cases that differ in their kind only.

    What was not measured again keeps its figures.
    """
    known = figures_of(page)
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault((row.point, row.fault, row.answer, row.promise), []).append(row)
    table = []
    for (point, fault, answer, promise), cases in lines.items():
        kinds = ", ".join(dict.fromkeys(row.kind for row in cases))
        shown = ", ".join(
            row.case({**known.get(row.name, {}), **figures.get(row.name, {})}) for row in cases
        )
        table.append(f"| {point} | {fault} | {kinds} | {answer} | {promise} | {shown} |")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return "\n".join((before + BEGIN, *HEAD, *table, END + after))
