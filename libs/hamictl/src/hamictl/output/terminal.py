"""Standard output and standard error, and the user's choices for them.

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
    """Choice of when to use colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """Choices of the options with the same names."""

    headers: bool = True
    columns: tuple[str, ...] = ()
    """Names of columns in the requested order; empty: all."""
    sort_by: str = ""
    colour: Colour = Colour.AUTO
    ascii_only: bool = False
    utc: bool = False
    quiet: bool = False
    """Whether only errors are printed on standard error."""


_DEFAULT = Presentation()
_CURRENT: ContextVar[Presentation] = ContextVar("hamictl_presentation", default=_DEFAULT)


def present(chosen: Presentation) -> None:
    """Set the choices for the rest of this process."""
    _CURRENT.set(chosen)


def presentation() -> Presentation:
    """Return the present choices."""
    return _CURRENT.get()


_GLYPHS = str.maketrans(
    dict(zip("●○◐▲✖▒▓▬▪│├└─·░µ", "*o%!x#===||`-.-u", strict=True))
    | {"⋯": "...", "…": "...", "→": "->", "°": ""}
)
GLYPHS = "".join(map(chr, _GLYPHS))


def in_ascii(text: str) -> str:
    """Return the text for an ASCII terminal: similar characters for glyphs, escapes for others."""
    return text.translate(_GLYPHS).encode("ascii", "backslashreplace").decode()


def age(value: object) -> str:
    """Return the time since an RFC 3339 time in kubectl's form, `45s` or `5h`; `?` if unknown."""
    if value is None:
        return "?"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(str(value))).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{max(seconds, 0)}s"


def shown_time(value: object, *, seconds: bool = True) -> str:
    """Format an RFC 3339 time for tables, in the user's zone or UTC; `?` if unknown."""
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
    r"""Return the text with control characters escaped (`\\x1b`), except those in `keep`."""
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
    """Console for standard output, reconfigured when a command's options are known."""

    def __init__(self) -> None:
        super().__init__(**_options(Colour.AUTO))

    def set_up(self) -> None:
        """Apply the choices of `presentation()`."""
        Console.__init__(self, **_options(presentation().colour))

    def on_broken_pipe(self) -> None:
        """End with our status for a closed pipe, not Rich's status 1."""
        raise BrokenPipeError

    def print(self, *objects: Any, **how: Any) -> None:
        """Print like Rich, with control characters in texts of the cluster escaped."""
        objects = tuple(plain(each) if isinstance(each, str) else each for each in objects)
        super().print(*objects, **how)

    def print_whole(self, table: RenderableType) -> None:
        """Print a table, folded to the terminal's width; in a pipe each row is one line."""
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
    """Return whether standard output can encode each glyph; Latin-1 and ASCII can't."""
    try:
        GLYPHS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


console = TerminalConsole()
"""Console for standard output."""


def note(text: str) -> None:
    """Print a message on standard error, unless `-q` is given."""
    if not presentation().quiet:
        complain(text)


def note_renamed(old: str, new: str) -> None:
    """Print which new name replaces the old one of a command, option or column."""
    complain(f"hamictl: {old} is now {new}; the old name will stop working in 0.4.0")


def now_text() -> str:
    """Return the present time in RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def complain(text: str) -> None:
    """Print an error on standard error."""
    print(plain(text), file=sys.stderr)  # noqa: T201 (this is the user's terminal)


def emit(text: str) -> None:
    """Print data on standard output; for a terminal control characters are escaped."""
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def plain(text: str, chosen: Presentation | None = None) -> str:
    """Return the text without control characters, and in ASCII if the terminal needs that."""
    shown = printable(text)
    return in_ascii(shown) if (chosen or presentation()).ascii_only else shown
