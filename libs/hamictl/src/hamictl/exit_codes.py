"""Exit statuses of all commands, and the status for each error.

Only `hamictl db check` has further ones (docs/operations.md): they name the gravest finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from hamicommon.errors import Forbidden, InvalidRequest, NotFound, Unavailable


class ExitCode(IntEnum):
    """Exit codes that a script may rely on."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    NOT_FOUND = 3
    NOT_ALLOWED = 4
    UNREACHABLE = 5
    ANSWER_IS_NO = 6
    INTERRUPTED = 130
    READER_LEFT = 141


MEANINGS = {
    ExitCode.DONE: "done; an empty list too, with `No ... found` on standard error",
    ExitCode.FAILED: "failed: one sentence on standard error has what, why and what to do",
    ExitCode.WRONG_USAGE: "wrong usage: an unknown verb, option or value",
    ExitCode.NOT_FOUND: "not found: the named pod, node, card or question does not exist",
    ExitCode.NOT_ALLOWED: "not allowed, or not logged in",
    ExitCode.UNREACHABLE: "a server is unavailable, or another server answers at its address",
    ExitCode.ANSWER_IS_NO: "the answer is no: capacity, preempt, scale plan, lint, doctor; "
    "with --exit-code explain, drift",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.READER_LEFT: "the reader of the output stopped early, as head does",
}


class WrongUsage(InvalidRequest):
    """Error: an option or argument is missing, has a wrong value or contradicts another."""


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Turn InvalidRequest into `WrongUsage`, where only the command line can be the cause."""
    try:
        yield
    except InvalidRequest as exc:
        raise WrongUsage(str(exc)) from exc


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit status for one of our errors."""
    if isinstance(error, WrongUsage):
        return ExitCode.WRONG_USAGE
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, Forbidden):
        return ExitCode.NOT_ALLOWED
    if isinstance(error, Unavailable):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED
