"""Runs a command's coroutine and turns our errors into one line for the person at the terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from hamicommon.errors import HamiError
from hamilocal.supervisor.plan import ServerError
from hamilocal.supervisor.state_file import SupervisorError
from rich.console import Console

T = TypeVar("T")

# Rich takes 80 columns where there is no terminal; logs and pipes can hold what a reader wants.
WIDE = 160

console = Console() if sys.stdout.isatty() else Console(width=WIDE)
"""Standard output."""


def fail(message: str) -> typer.Exit:
    """Prints the sentence on standard error; raise what it returns."""
    print(f"hamictl: {message}", file=sys.stderr)  # noqa: T201 (this is the user's terminal)
    return typer.Exit(1)


@contextmanager
def spoken_errors() -> Iterator[None]:
    """Our own errors become one line and exit status 1; anything else is a bug and shows itself."""
    try:
        yield
    except (HamiError, ServerError, SupervisorError) as exc:
        raise fail(str(exc)) from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` to its end."""
    with spoken_errors():
        return asyncio.run(work)
