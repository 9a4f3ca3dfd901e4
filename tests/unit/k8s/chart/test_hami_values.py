"""docs/helm.md answers for every value of HAMi's chart (`hami_values.txt`: its names, of 2.10)."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[4]
NAMES = (Path(__file__).parent / "hami_values.txt").read_text().split()
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "k8s" / "chart" / "values.yaml").read_text())


def cells() -> list[list[str]]:
    """Rows of the page's tables, but for their heads."""
    lines = (ROOT / "docs" / "helm.md").read_text().splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


def patterns(cell: str) -> list[str]:
    return re.findall(r"`([\w.*-]+)`", cell)


ANSWERED = [pattern for row in cells() for pattern in patterns(row[0])]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_there_or_the_page_has_the_reason(name: str) -> None:
    assert any(fnmatchcase(name, pattern) for pattern in ANSWERED)


def test_what_the_page_calls_the_same_is_a_value_here() -> None:
    same = {
        name
        for row in cells()
        if row[1].startswith("the same")
        for pattern in patterns(row[0])
        for name in NAMES
        if fnmatchcase(name, pattern) and ".image." not in name
    }

    assert {name for name in same if not is_there(name)} == set()
    assert len(same) > 30


def is_there(name: str) -> bool:
    """Or its mapping is, which takes any key."""
    held: Any = VALUES
    for part in name.split("."):
        if not isinstance(held, dict) or part not in held:
            return name.startswith(("devicePlugin.updateStrategy", "devicePlugin.nvidiaNode"))
        held = held[part]
    return True
