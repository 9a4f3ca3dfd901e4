"""Markdown of the reference: text of one line, tables."""

from __future__ import annotations

from collections.abc import Iterable


def text_of(text: str) -> str:
    """In one line, with nothing that Markdown or a table would take for its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """With `head` above the rows."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
