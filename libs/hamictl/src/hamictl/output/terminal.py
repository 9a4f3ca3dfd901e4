"""The two streams of the terminal, and how a person wants answers to look.

Data goes to standard output, messages to standard error. `lazy.py` adds the options to each verb
and calls `present` before the verb runs. Colours only on a terminal and without NO_COLOR, unless
`--color` decides it.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement


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
    """Set the choice for the rest of this process."""
    _CURRENT.set(chosen)


def presentation() -> Presentation:
    """The choice."""
    return _CURRENT.get()


_GLYPHS = str.maketrans(
    dict(zip("●○◐▲✖▒▓▬▪│├└─·░µ", "*o%!x#===||`-.-u", strict=True))
    | {"⋯": "...", "…": "...", "→": "->", "°": ""}
)
GLYPHS = "".join(map(chr, _GLYPHS))


def in_ascii(text: str) -> str:
    """The text for a terminal that knows ASCII alone: glyphs by their likes, the rest escaped."""
    return text.translate(_GLYPHS).encode("ascii", "backslashreplace").decode()


def age(value: object) -> str:
    """Time since an RFC 3339 moment in kubectl's form, `45s` or `5h`; `?` if it is unknown."""
    if value is None:
        return "?"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(str(value))).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{max(seconds, 0)}s"


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
    r"""The text with what a terminal would obey written out, such as `\x1b`; not what is kept."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


# Rich takes 80 columns where there is no terminal; logs and pipes can hold what a reader wants.
WIDE = 160
WIDEST = 100_000


class TerminalConsole(Console):
    """Standard output, set up again when the options of a verb are known."""

    def __init__(self) -> None:
        super().__init__(**_options(Colour.AUTO))

    def set_up(self) -> None:
        """Go by `presentation()` from now on."""
        Console.__init__(self, **_options(presentation().colour))

    def on_broken_pipe(self) -> None:
        """Rich ends with status 1; `__main__` has ours."""
        raise BrokenPipeError

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as Rich does; texts come from the cluster, and nothing in them is obeyed."""
        objects = tuple(plain(each) if isinstance(each, str) else each for each in objects)
        super().print(*objects, **how)

    def print_whole(self, table: RenderableType) -> None:
        """A table; folded to fit a terminal, never in a pipe: there a row is a line."""
        if self.is_terminal:
            self.print(table)
            return
        widest = Measurement.get(self, self.options.update(max_width=WIDEST), table).maximum
        whole = Console(**{**_options(presentation().colour), "width": max(widest, 1)})
        whole.print(table, crop=False)


def _options(colour: Colour) -> dict[str, Any]:
    live = sys.stdout.isatty()
    how: dict[str, Any] = {} if live else {"width": WIDE}
    if colour is Colour.NEVER:
        how["no_color"] = True
        how["color_system"] = None
    elif colour is Colour.ALWAYS:
        # Rich's own names: 16 colours are known to every terminal.
        how |= {"force_terminal": True, "no_color": False, "color_system": "standard"}
    elif not live:
        # FORCE_COLOR of a surrounding program is no reason to colour a file.
        how["color_system"] = None
    return how


def knows_glyphs() -> bool:
    """Whether standard output has a code for each glyph; Latin-1 and ASCII have not."""
    try:
        GLYPHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


console = TerminalConsole()
"""Standard output."""


def note(text: str) -> None:
    """A line for the person, on standard error; nothing with `-q`."""
    if not presentation().quiet:
        complain(text)


def note_renamed(old: str, new: str) -> None:
    """Name what replaces an old name of a verb, option or column."""
    complain(f"hamictl: {old} is now {new}; the old name will stop working in 0.4.0")


def now_text() -> str:
    """Now, in RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def complain(text: str) -> None:
    """A line on standard error."""
    print(plain(text), file=sys.stderr)  # noqa: T201 (this is the user's terminal)


def emit(text: str) -> None:
    """Data on standard output: to a program as it is, to a terminal without what it would obey."""
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def plain(text: str, chosen: Presentation | None = None) -> str:
    """The text without control characters, and in ASCII if the terminal needs that."""
    shown = printable(text)
    return in_ascii(shown) if (chosen or presentation()).ascii_only else shown
