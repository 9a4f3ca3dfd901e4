"""One event loop whose clock is a number: sleeping costs nothing and every run is the same.

`fake_time(seed)` gives such a loop and, while the block runs, lets everything else that would make
two runs differ read from it or from the seed: monotonic and wall clocks, uuids, `random`.
Threads are run on the spot, because a thread's end has no place in a history.
"""

import asyncio
import logging
import random
import selectors
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest import mock

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_OURS = ("hamicommon", "hami_scheduler", "hami_node_agent")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for the next timer it moves the clock there."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again in this simulation")
        self.now += max(0.0, timeout)
        return []


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock that jumps from timer to timer."""

    def __init__(self) -> None:
        self.fake = _JumpingSelector()
        super().__init__(self.fake)
        # Sums of floats differ from the timer's own time by less than this.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self.fake.now

    def run_in_executor(
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Runs it here and now."""
        del executor
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # noqa: BLE001 - raised again where the caller waits
            future.set_exception(exc)
        return future


class _Clock:
    loop: FakeTimeLoop | None = None
    wall_offset_s = 0.0

    @classmethod
    def now(cls) -> float:
        assert cls.loop is not None
        return cls.loop.time()


class _FakeDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return wall_clock().astimezone(tz)


def wall_clock() -> datetime:
    """The simulation's date and time."""
    return EPOCH + timedelta(seconds=_Clock.now() + _Clock.wall_offset_s)


def jump(seconds: float) -> None:
    """Set the wall clock; monotonic ones go on as they did."""
    _Clock.wall_offset_s += seconds


@contextmanager
def fake_time(seed: str) -> Iterator[FakeTimeLoop]:
    """Everything inside is a function of the seed."""
    loop = FakeTimeLoop()
    source = random.Random(f"{seed}:uuids")
    before, _Clock.loop, _Clock.wall_offset_s = random.getstate(), loop, 0.0
    random.seed(f"{seed}:random")

    def made_up() -> uuid.UUID:
        return uuid.UUID(int=source.getrandbits(128), version=4)

    patches = [
        mock.patch.object(time, "monotonic", _Clock.now),
        mock.patch.object(time, "perf_counter", _Clock.now),
        mock.patch.object(uuid, "uuid4", made_up),
        *_in_our_modules("datetime", datetime, _FakeDatetime),
        *_in_our_modules("uuid4", uuid.uuid4, made_up),
    ]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    for patch in patches:
        patch.start()
    try:
        yield loop
    finally:
        for patch in reversed(patches):
            patch.stop()
        logging.disable(disabled)
        random.setstate(before)
        loop.close()
        _Clock.loop = None


def _in_our_modules(name: str, old: object, new: object) -> list[Any]:
    return [
        mock.patch.object(module, name, new)
        for key, module in sorted(sys.modules.items())
        if key.startswith(_OURS) and vars(module).get(name) is old
    ]
