"""What of a row somebody may see: a slice of another namespace keeps its size and loses its names.

One setting rules pages, API and streams alike (`ShowOwners`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from hamicommon.ledger.questions import Question

OTHER = "other"
"""In place of a namespace."""
WITHHELD = "of a namespace whose pods you may not list"


class ShowOwners(StrEnum):
    """What a viewer sees of slices of namespaces whose pods they may not list."""

    NAMES = "names"
    NAMESPACES = "namespaces"
    SIZES = "sizes"


def redacted(
    question: Question,
    rows: Iterable[Mapping[str, Any]],
    *,
    seen: frozenset[str],
    show: ShowOwners,
) -> tuple[Mapping[str, Any], ...]:
    """The rows as one may see them who may list the pods of the namespaces `seen`."""
    if show is ShowOwners.NAMES:
        return tuple(rows)
    names = frozenset(column.name for column in question.columns if column.names_somebody)
    return tuple(
        row
        # What is of no namespace (a card, idle time) is nobody's secret.
        if not row.get("namespace") or row["namespace"] in seen
        else _without(row, names, show)
        for row in rows
    )


def _without(row: Mapping[str, Any], names: frozenset[str], show: ShowOwners) -> dict[str, Any]:
    kept = {key: None if key in names else value for key, value in row.items()}
    if show is ShowOwners.SIZES:
        kept["namespace"] = OTHER
    return kept
