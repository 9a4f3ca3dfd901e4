"""Files that comments and pages cite are in the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PARTS = ("services", "libs", "native", "migrations", "tests", "bench", "docs", "examples", "k8s")


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


CITED = re.compile(r"`([\w/.-]+\.(?:py|c|h|def|sql|md))`")
FULL_PATH = re.compile(rf"(?<![\w/.-])((?:{'|'.join(PARTS)})/[\w/-]+\.(?:py|c|h|def|sql|md))\b")
NO_MODULES = {"hami_webhook.audit": "a logger"}


def test_every_file_that_is_cited_exists() -> None:
    """A bare name of Python's is one of the same package; a path may begin anywhere."""
    files = {f"/{path.relative_to(ROOT)}" for path in texts()}

    def exists(name: str, citing: Path) -> bool:
        bare = "/" not in name and (citing.suffix, name[-3:]) == (".py", ".py")
        part = "/".join(("", *citing.relative_to(ROOT).parts[:2])) if bare else ""
        return any(file.endswith(f"/{name}") and file.startswith(part) for file in files)

    missing = {
        (str(path.relative_to(ROOT)), name)
        for path, text in texts().items()
        for name in (*CITED.findall(text), *FULL_PATH.findall(text))
        if not exists(name.removeprefix("../"), path)
    }

    assert missing == set()


def test_every_module_that_is_cited_exists() -> None:
    packages = {path.parent.name: path.parent for path in ROOT.glob("*/*/src/*/__init__.py")}
    dotted = re.compile(rf"`((?:{'|'.join(packages)})(?:\.\w+)+)`")

    def exists(name: str) -> bool:
        package, *rest = name.split(".")
        at = packages[package]
        while rest and (at / rest[0]).is_dir():
            at /= rest.pop(0)
        if rest and (module := at / f"{rest[0]}.py").exists():
            at, rest = module, rest[1:]
        held = at / "__init__.py" if at.is_dir() else at
        return not rest or (held.exists() and re.search(rf"\b{rest[0]}\b", held.read_text()))

    missing = {
        (str(path.relative_to(ROOT)), name)
        for path, text in texts().items()
        for name in dotted.findall(text)
        if name not in NO_MODULES and not exists(name)
    }

    assert missing == set()
