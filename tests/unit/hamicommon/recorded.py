"""Path of the answers that were recorded from HAMi itself (they are no part of this project)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def lines(name: str) -> list[dict[str, Any]]:
    """The records of one file; skips the test when the folder is not beside the checkout."""
    checkout = Path(__file__).resolve().parents[3]
    for folder in (parent / "shared" / "facts" / "recorded" for parent in checkout.parents):
        if (folder / name).exists():
            text = (folder / name).read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines()]
    pytest.skip(f"shared/facts/recorded/{name} is not beside the checkout")


def as_line(record: dict[str, Any]) -> str:
    """The record as a line of `hamictl simulate --jsonl`, without the answer."""
    return json.dumps({"name": record["name"], "in": record["in"]})
