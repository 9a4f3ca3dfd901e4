"""Run a command's coroutine; errors become one line and an exit status."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from hamicommon.errors import HamiError
from hamilocal.supervisor.plan import ServerError
from hamilocal.supervisor.state_file import SupervisorError

from hamictl.exit_codes import ExitCode, exit_code_of
from hamictl.output.terminal import complain
from hamictl.output.terminal import console as console

T = TypeVar("T")


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> typer.Exit:
    """Print the message on standard error; return the exception to raise."""
    complain(f"hamictl: {message}")
    return typer.Exit(code)


@contextmanager
def spoken_errors() -> Iterator[None]:
    """Turn our own errors into one line and their exit status (`exit_codes.py`).

    Anything else is a bug and shows itself.
    """
    try:
        yield
    except (HamiError, ServerError, SupervisorError) as exc:
        raise fail(str(exc), exit_code_of(exc)) from None


def run_interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end on a new event loop.

    Raises: KeyboardInterrupt at Ctrl-C, also at one before the first step of `work`.
    """
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        # Only Ctrl-C cancels it. `asyncio.run` forgets one that comes between its taking over the
        # signal and its counting from 0, and lets the cancellation through in place of this.
        raise KeyboardInterrupt from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end; our own errors become one line and their exit status."""
    with spoken_errors():
        return run_interruptible(work)
