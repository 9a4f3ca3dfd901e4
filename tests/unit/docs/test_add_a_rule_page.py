"""libs/hamicommon/add-a-rule.md changes files as they are: what its lines stand beside is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "libs" / "hamicommon" / "add-a-rule.md").read_text()


def test_every_line_that_the_example_stands_beside_is_in_its_file() -> None:
    [example] = re.findall(r"```diff\n(.*?)```", PAGE, re.DOTALL)
    missing, lines = [], set[str]()
    for line in example.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ")
            lines = set((ROOT / path).read_text().splitlines())
        elif line[:1] in (" ", "-") and line[1:] not in lines:
            missing.append((path, line))

    assert missing == []
