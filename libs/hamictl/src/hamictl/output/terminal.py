"""The two streams of the terminal: data on standard output, messages on standard error.

Colours only on a terminal and without NO_COLOR, unless `--color` decides it.
"""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement

from hamictl.output.presentation import GLYPHS, Colour, in_ascii, presentation, printable

# Rich takes 80 columns where there is no terminal; logs and pipes can hold what a reader wants.
WIDE = 160
WIDEST = 100_000


class TerminalConsole(Console):
    """Standard output, set up again when the options of a verb are known."""

    def __init__(self) -> None:
        super().__init__(**_options(Colour.AUTO))

    def set_up(self) -> None:
        """Goes by `presentation()` from now on."""
        Console.__init__(self, **_options(presentation().colour))

    def on_broken_pipe(self) -> None:
        """Rich ends with status 1; `__main__` has ours."""
        raise BrokenPipeError

    def print(self, *objects: Any, **how: Any) -> None:
        """As Rich does; texts come from the cluster, and nothing in them is obeyed."""
        objects = tuple(_shown(each) if isinstance(each, str) else each for each in objects)
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


def complain(text: str) -> None:
    """A line on standard error."""
    print(_shown(text), file=sys.stderr)  # noqa: T201 (this is the user's terminal)


def emit(text: str) -> None:
    """Data on standard output: to a program as it is, to a terminal without what it would obey."""
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def _shown(text: str) -> str:
    shown = printable(text)
    return in_ascii(shown) if presentation().ascii_only else shown
