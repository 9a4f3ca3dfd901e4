"""A verb's coroutine, and Ctrl-C at the worst moment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hamictl.commands.runner import run_interruptible

set_handler = signal.signal


@pytest.fixture
def python_handler() -> Iterator[None]:
    """Python's own for SIGINT; what started the tests may ignore it."""
    before = set_handler(signal.SIGINT, signal.default_int_handler)
    yield
    set_handler(signal.SIGINT, before)


async def nothing() -> str:
    return "done"


@pytest.mark.usefixtures("python_handler")
def test_ctrl_c_before_the_first_step_is_an_interrupt_not_a_cancellation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted_at_once(number: int, handler: Any) -> Any:
        """Ctrl-C comes as soon as asyncio has its own handler in place."""
        before = set_handler(number, handler)
        if handler is not signal.default_int_handler:
            signal.raise_signal(number)
        return before

    monkeypatch.setattr(signal, "signal", interrupted_at_once)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(nothing())


@pytest.mark.usefixtures("python_handler")
def test_ctrl_c_at_work_is_an_interrupt() -> None:
    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_interruptible(interrupt())


def test_what_ends_by_itself_gives_its_result() -> None:
    assert run_interruptible(nothing()) == "done"
