"""The rows of tests/faults/README.md: one for each case of this folder, with its measurements.

A row is `@pytest.mark.row(point=..., fault=..., kind=..., answer=..., promise=...)` on the
function, on the parameter, or in parts on both. The page's table is between two markers. The
seconds that each case took to recover are in `figures.json`.
`make test-faults ARGS=--update-page` writes both, and `tests/unit/docs/test_reliability_page.py`
fails if they do not match the cases.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- rows: begin -->", "<!-- rows: end -->"
HEAD = (
    "| Point | Fault | Kind | What happens | Promise | `-k` |",
    "|---|---|---|---|---|---|",
)
KINDS = ("kill", "error", "delay", "duplicate", "reorder", "lose")
FIGURES = Path(__file__).parent / "figures.json"
"""Name of a row -> kind of cluster (`emulator`, `real`) -> seconds."""
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault at one point."""

    name: str
    """Name for `-k`, for example `FAULT-8-store.commit.after-kill`."""
    point: str
    """Points of the survey (FAULT-1 .. FAULT-45), separated by spaces, or a promise: SAFE-1."""
    fault: str
    kind: str
    answer: str
    """The system's reaction."""
    promise: str
    """Promise of architecture 6."""


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
        raise pytest.UsageError(f"{item.nodeid}: kind {found['kind']}: expected one of {KINDS}")
    inner = item.name.partition("[")[2].removesuffix("]")
    return Row(name=inner if "-" in inner else item.name, **found)


def collect_rows() -> list[Row]:
    """The rows of all cases, collected in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        options = ["-q", "--collect-only", "--slow", "-p", "no:cacheprovider", "--rows", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, str(Path(__file__).parent)],
            cwd=PAGE.parents[2],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return from_json(file.read_text())


def to_json(rows: Iterable[Row]) -> str:
    """Return the rows as text, for the process that collects the cases without running them."""
    return json.dumps([asdict(row) for row in rows])


def from_json(text: str) -> list[Row]:
    """Return the rows of this text."""
    return [Row(**fields) for fields in json.loads(text)]


def figures() -> Figures:
    """Return the latest measurements."""
    found: Figures = json.loads(FIGURES.read_text())
    return found


def with_figures(rows: Iterable[Row], known: Figures, new: Figures) -> Figures:
    """Return the figures of these rows; rows without a new measurement keep the old one."""
    names = sorted(row.name for row in rows)
    return {name: {**known.get(name, {}), **new.get(name, {})} for name in names}


def with_rows(page: str, rows: Iterable[Row]) -> str:
    """Return the page with its table, one line for cases that differ only in their kind."""
    lines: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault((row.point, row.fault, row.answer, row.promise), []).append(row)
    table = []
    for (point, fault, answer, promise), cases in lines.items():
        kinds = ", ".join(dict.fromkeys(row.kind for row in cases))
        table.append(f"| {point} | {fault} | {kinds} | {answer} | {promise} | {selectors(cases)} |")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    return "\n".join((before + BEGIN, *HEAD, *table, END + after))


def selectors(cases: list[Row]) -> str:
    """Return the `-k` names of these cases, without the parts in which they differ."""
    if len(cases) == 1:
        return f"`{cases[0].name}`"
    shared = (row.name.removesuffix(f"-{row.kind}").partition("[")[0] for row in cases)
    return ", ".join(f"`{name}`" for name in dict.fromkeys(shared))
