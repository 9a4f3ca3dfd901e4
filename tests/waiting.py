"""Waits of tests for events, on a machine as busy as it may be.

A wait ends with its event, so a distant bound costs nothing: no working system comes near
`PATIENCE_S`, even on a very busy machine. No test asserts that an event happens within the time of
a quiet machine; the few promises about time (LIVE-2, LIVE-3 of tests/faults/README.md) are counted
in seconds of a quiet machine: `Unhurried`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 240.0
"""Less than the time-out of a case (pyproject.toml), so that the wait names the missing event."""
CHECK_INTERVAL_S = 0.02
_OF_THIS_THREAD = Path("/proc/thread-self/schedstat")


async def eventually(look: Callable[[], T | Awaitable[T]], what: str = "") -> T:
    """Call `look`, which may be a coroutine function, until its result is true, and return that.

    Raises: AssertionError, with `what` was waited for.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        seen = look()
        found: T = await seen if inspect.isawaitable(seen) else seen
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {PATIENCE_S:g} s: {what or _name_of(look)}")
        await asyncio.sleep(CHECK_INTERVAL_S)


def wait(
    look: Callable[[], T | None],
    what: str = "",
    *,
    within_s: float | None = None,
    every_s: float = CHECK_INTERVAL_S,
    why: Callable[[], str] = lambda: "",
) -> T:
    """Do the same in code that is not asynchronous; `why` describes the actual state.

    `within_s`: the promised time, in seconds of a quiet machine.
    """
    deadline_s, waited = time.monotonic() + PATIENCE_S, Unhurried()
    while not (found := look()):
        late = time.monotonic() > deadline_s if within_s is None else waited.seconds > within_s
        if late:
            missing = f"not within {within_s or PATIENCE_S:g} s: {what or _name_of(look)}"
            raise AssertionError("; ".join(filter(None, (missing, why()))))
        time.sleep(every_s)
    return found


class Unhurried:
    """The seconds that have passed, as counted with a core for every thread.

    The kernel records how long this thread ran and how long it was ready without a core
    (proc_pid_schedstat). Other processes are delayed alike, so a second counts by that ratio.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._began_ns = _scheduled_ns()

    @property
    def slowdown(self) -> float:
        """The factor by which time was longer, at least 1; 1 if the kernel does not show it."""
        ran_ns, waited_ns = (
            now - then for now, then in zip(_scheduled_ns(), self._began_ns, strict=True)
        )
        return 1 + waited_ns / ran_ns if ran_ns else 1.0

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return (time.monotonic() - self._began_s) / self.slowdown


def _scheduled_ns() -> tuple[int, int]:
    """The times for which this thread ran and waited for a core."""
    if not _OF_THIS_THREAD.exists():
        return 0, 0
    ran, waited, _ = _OF_THIS_THREAD.read_text().split()
    return int(ran), int(waited)


def _name_of(look: object) -> str:
    return getattr(look, "__name__", repr(look))
