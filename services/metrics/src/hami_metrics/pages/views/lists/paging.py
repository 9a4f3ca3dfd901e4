"""The pages of a list. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Line = TypeVar("Line")
ROWS = 100
"""Of one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[Line]):
    """One page of a list."""

    lines: Sequence[Line]
    total: int
    """Lines that meet the filter."""
    of: int
    """All lines that the viewer may see."""
    first: int
    next: int | None
    """Where the next page begins; None: this is the last."""


def list_page(lines: Sequence[Line], of: int, first: int) -> ListPage[Line]:
    """The page that begins with line number `first`."""
    following = first + ROWS if first + ROWS < len(lines) else None
    return ListPage(
        lines=lines[first : first + ROWS], total=len(lines), of=of, first=first, next=following
    )
