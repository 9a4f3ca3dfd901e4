"""What a person chose about the looks of an answer: the options that every verb has.

`lazy.py` adds them to each verb and calls `present` before the verb runs.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class Colour(StrEnum):
    """When to colour."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """The options of the same names."""

    headers: bool = True
    columns: tuple[str, ...] = ()
    """Names of columns, in the order in which they are wanted; empty: all."""
    sort_by: str = ""
    colour: Colour = Colour.AUTO
    ascii_only: bool = False
    utc: bool = False
    quiet: bool = False
    """No messages on standard error but errors."""


_DEFAULT = Presentation()
_CURRENT: ContextVar[Presentation] = ContextVar("hamictl_presentation", default=_DEFAULT)


def present(chosen: Presentation) -> None:
    """Sets the choice for the rest of this process."""
    _CURRENT.set(chosen)


def presentation() -> Presentation:
    """The choice."""
    return _CURRENT.get()


_GLYPHS = str.maketrans(
    {
        "●": "*",
        "○": "o",
        "◐": "%",
        "▲": "!",
        "✖": "x",
        "▒": "#",
        "▓": "=",
        "▬": "=",
        "▪": "=",
        "⋯": "...",
        "…": "...",
        "│": "|",
        "├": "|",
        "└": "`",
        "─": "-",
        "·": ".",
        "░": "-",
        "→": "->",
        "µ": "u",
        "°": "",
    }
)


GLYPHS = "".join(map(chr, _GLYPHS))


def in_ascii(text: str) -> str:
    """The text for a terminal that knows ASCII alone: glyphs by their likes, the rest escaped."""
    return text.translate(_GLYPHS).encode("ascii", "backslashreplace").decode()


def shown_time(value: object, *, seconds: bool = True) -> str:
    """An RFC 3339 text as a table shows it, in the reader's zone or UTC; `?` where unknown."""
    if value is None:
        return "?"
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return str(value)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    local = found.astimezone(UTC if presentation().utc else None)
    return local.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def printable(text: str, *, keep: str = "\n") -> str:
    """The text with what a terminal would obey written out, such as `\\x1b`; not what is kept."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
