"""Make targets that pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"(?:`|\$ )(?:[A-Z_]+=\S+ )*make ([a-z][a-z0-9_-]*)")
BENCHMARKS = {path.parent.name.replace("_", "-") for path in (ROOT / "bench").glob("*/__main__.py")}


def test_every_target_that_a_page_names_has_a_rule() -> None:
    rules = re.findall(r"^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    suites = re.findall(r"^    ([a-z0-9]+)\)", (ROOT / "scripts/suite").read_text(), re.MULTILINE)
    rules += [f"test-{suite}" for suite in suites]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "k8s" / "README.md"]
    named = {
        (name, page.relative_to(ROOT).as_posix())
        for page in pages
        if page.name != "CHANGELOG.md"  # of targets as they were
        for name in NAMED.findall(page.read_text())
    }
    assert len(named) > 20
    missing = [
        (name, page)
        for name, page in sorted(named)
        if name not in rules
        and not (name.startswith("bench-") and name.removeprefix("bench-") in BENCHMARKS)
    ]
    assert missing == []


def test_a_newcomer_finds_few_targets() -> None:
    rules = re.findall(r"^([a-z0-9%-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert len(rules) <= 15


def test_every_benchmark_is_on_its_page() -> None:
    page = (ROOT / "tests" / "README.md").read_text()

    assert {"filter", "pods", "libvgpu", "node-agent", "pages", "packing"} == BENCHMARKS
    assert [name for name in BENCHMARKS if f"\n| `{name}` |" not in page] == []
