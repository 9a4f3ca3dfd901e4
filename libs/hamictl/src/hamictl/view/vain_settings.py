"""A quota or a cordon without effect, as the scheduler lists them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def vain_setting(row: Mapping[str, Any]) -> str:
    """`ResourceQuota team-a/q: nvidia.com/gpumem: 4000 limits nothing: ...`."""
    if row["kind"] == "ResourceQuota":
        return f"ResourceQuota {row['namespace']}/{row['name']}: {row['problem']}"
    return f"Node {row['name']}, annotation {row['setting']}: {row['problem']}"
