"""What of the held time was used, and in how much of it nothing was done, by namespace. Pure.

From the answer to `namespace-use`: sums of whole hours, so the hour that runs is not in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

QuestionRow = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceUse:
    """Ratios; None is unknown."""

    used_ratio: float | None = None
    """Of what was granted, in the mean: memory, or with the basis cores the cores."""
    idle_ratio: float | None = None
    """Of the time of its slices: the hours in which no core was at work."""


UNKNOWN_USE = NamespaceUse()


def use_by_namespace(
    use: Iterable[QuestionRow] | None,
    *,
    basis: str,
    name_of: Callable[[str], str] = str,
) -> dict[str, NamespaceUse]:
    """By the name that `name_of` gives a namespace: several may have one, such as `other`.

    `use` are the rows of `namespace-use`; None: not answered. Hours in which it is not known
    whether a core was at work are not counted as idle.
    """
    what = "core_ratio" if basis == "cores" else "memory_bytes"
    granted: defaultdict[str, float] = defaultdict(float)
    used: defaultdict[str, float] = defaultdict(float)
    slice_s: defaultdict[str, float] = defaultdict(float)
    idle_s: defaultdict[str, float] = defaultdict(float)
    measured: set[str] = set()
    unsummed: set[str] = set()
    for row in use or ():
        name = name_of(str(row["namespace"]))
        slice_s[name] += row["slice_s"]
        if row["used_core_ratio"] is not None:
            measured.add(name)
        # A service of an older version does not sum it up.
        if row["sample_count"] and row.get("idle_s") is None:
            unsummed.add(name)
        idle_s[name] += row.get("idle_s") or 0
        if row[what] and row[f"used_{what}"] is not None:
            granted[name] += float(row[what]) * row["slice_s"]
            used[name] += float(row[f"used_{what}"]) * row["slice_s"]
    return {
        name: NamespaceUse(
            used_ratio=used[name] / granted[name] if granted[name] else None,
            idle_ratio=min(1.0, idle_s[name] / held_s)
            if name in measured - unsummed and held_s
            else None,
        )
        for name, held_s in slice_s.items()
    }
