"""What comments and pages cite is in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PARTS = ("services", "libs", "native", "migrations", "tests", "bench", "docs", "k8s")


def texts() -> dict[Path, str]:
    listed = subprocess.run(
        ["git", "ls-files", *PARTS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [ROOT / name for name in listed]
    wanted = (".py", ".c", ".h", ".def", ".md", ".yaml", ".sql")
    return {path: path.read_text() for path in paths if path.suffix in wanted and path.exists()}


def sections(page: str) -> set[str]:
    text = (DOCS / page).read_text()
    found = set(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", text, re.MULTILINE))
    steps = re.search(r"^## 3\. .*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    if page == "architecture.md" and steps:
        found |= {f"3.{number}" for number in re.findall(r"^(\d)\. ", steps[0], re.MULTILINE)}
    return found


@pytest.mark.parametrize("page", ["protocol.md", "architecture.md"])
def test_every_section_that_is_cited_opens(page: str) -> None:
    name = page.removesuffix(".md")
    there = sections(page)

    missing = {
        (str(path.relative_to(ROOT)), number)
        for path, text in texts().items()
        for number in re.findall(rf"\b[{name[0].upper()}{name[0]}]{name[1:]} (\d+(?:\.\d+)*)", text)
        if number not in there
    }

    assert missing == set()


def test_every_file_on_the_way_of_a_pod_exists() -> None:
    text = (DOCS / "pod-path.md").read_text()
    files = {str(path.relative_to(ROOT)) for path in texts()}

    for name in re.findall(r"`([\w/.-]+\.(?:py|c|h))`", text):
        assert any(f"/{file}".endswith(f"/{name}") for file in files), name
