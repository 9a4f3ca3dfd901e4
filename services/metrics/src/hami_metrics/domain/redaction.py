"""Hide names in rows: a slice of another namespace keeps its size and loses its names.

One setting rules pages, API and streams alike (`ShowOwners`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hamicommon.ledger.questions import Question

OTHER = "other"
"""Name that is shown in place of a hidden namespace."""
WITHHELD = "in a namespace that you may not list"


class ShowOwners(StrEnum):
    """Way to show slices of namespaces whose pods a viewer may not list."""

    NAMES = "names"
    NAMESPACES = "namespaces"
    SIZES = "sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageViewer:
    """Viewer of a page.

    `namespaces`: those whose pods' names the viewer may read; None: all. `show`: what is shown of
    others.
    """

    name: str = field(default="", compare=False)
    namespaces: frozenset[str] | None = None
    show: ShowOwners = ShowOwners.SIZES

    def sees(self, namespace: str) -> bool:
        """Return whether names of pods of this namespace are shown."""
        if self.namespaces is None or self.show is ShowOwners.NAMES:
            return True
        return namespace in self.namespaces

    def namespace(self, namespace: str) -> str:
        """Return the namespace's name, or `other`."""
        if self.show is ShowOwners.NAMESPACES or self.sees(namespace):
            return namespace
        return OTHER

    def pod(self, namespace: str, name: str) -> str:
        """Return `namespace/name`, or the part of it that may be shown."""
        if self.sees(namespace):
            return f"{namespace}/{name}"
        return self.namespace(namespace)


EVERYBODY = PageViewer()
"""Viewer without identity, who sees everything; used on the loopback device only."""


def redact_rows(
    question: Question,
    rows: Iterable[Mapping[str, Any]],
    *,
    seen: frozenset[str],
    show: ShowOwners,
) -> tuple[Mapping[str, Any], ...]:
    """Return the rows for a viewer who may list the pods of the namespaces `seen`."""
    if show is ShowOwners.NAMES:
        return tuple(rows)
    names = frozenset(column.name for column in question.columns if column.names_somebody)
    return tuple(
        row
        # A row without a namespace (a card, idle time) is not confidential.
        if not row.get("namespace") or row["namespace"] in seen
        else _without(row, names, show)
        for row in rows
    )


def _without(row: Mapping[str, Any], names: frozenset[str], show: ShowOwners) -> dict[str, Any]:
    kept = {key: None if key in names else value for key, value in row.items()}
    if show is ShowOwners.SIZES:
        kept["namespace"] = OTHER
    return kept
