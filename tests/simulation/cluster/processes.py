"""Processes that may die, be stopped and go on late, and the wires between them.

Everything that a process does to the outside crosses a wire (`Process.wire`): some milliseconds
there and back, and whatever the weather makes of it. A process that was killed never crosses
another one, not even in a `finally`; one that is stopped waits at the wire it is about to cross.
"""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

from hamicommon.errors import Unavailable

Port = TypeVar("Port")
T = TypeVar("T")

FASTEST_S, SLOWEST_S = 0.0005, 0.008
"""One way over a wire on a fine day."""
STALL_S = 6.0
"""One way in a storm, at most; longer than most time-outs of the code under test."""


class Weather:
    """Share of disturbed calls on each connection at present."""

    def __init__(self) -> None:
        self._bad: dict[str, tuple[str, float, float]] = {}

    def turn(self, target: str, kind: str, share: float, until: float) -> None:
        """From now until then, `share` of the calls to `target` suffer `kind`."""
        self._bad[target] = (kind, share, until)

    def clear(self) -> None:
        """The faults are over."""
        self._bad.clear()

    def strike(self, target: str, now: float, rng: random.Random) -> str:
        """Choose this call's fault: `refused`, `lost`, `late`, `twice`, or none."""
        kind, share, until = self._bad.get(target, ("", 0.0, 0.0))
        if not kind or now >= until or rng.random() >= share:
            return ""
        return rng.choice(("refused", "lost", "late", "twice")) if kind == "any" else kind


class Process:
    """One program of ours, with its tasks."""

    def __init__(self, name: str, seed: str, weather: Weather) -> None:
        self.name = name
        self.alive = True
        self._seed = seed
        self._weather = weather
        self.crash: BaseException | None = None
        """Error that ended one of its tasks without a kill: always a bug of the code under test."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._going = asyncio.Event()
        self._going.set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a task of this process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.crash = self.crash or task.exception()

    async def kill(self) -> None:
        """SIGKILL."""
        self.alive = False
        self._going.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """SIGSTOP."""
        self._going.clear()

    def go_on(self) -> None:
        """SIGCONT."""
        self._going.set()

    async def hop(self, seconds: float) -> None:
        """Crosses a wire one way."""
        if not self.alive:
            raise asyncio.CancelledError
        await asyncio.sleep(seconds)
        await self._going.wait()
        if not self.alive:
            raise asyncio.CancelledError

    def wire(self, port: Port, target: str) -> Port:
        """The port as this process reaches it."""
        return cast(
            Port, _Wired(self, port, target, random.Random(f"{self._seed}:{self.name}:{target}"))
        )

    async def across(self, target: str, rng: random.Random, call: Callable[[], Awaitable[T]]) -> T:
        """One call over a wire. Raises: Unavailable, beside what the call raises."""
        await self.hop(rng.uniform(FASTEST_S, SLOWEST_S))
        struck = self._weather.strike(target, asyncio.get_running_loop().time(), rng)
        if struck == "refused":
            raise Unavailable(f"{target}: connection refused")
        if struck == "late":
            await self.hop(rng.uniform(0.0, STALL_S))
        if struck == "twice":
            await call()
        answer = await call()
        await self.hop(rng.uniform(FASTEST_S, SLOWEST_S))
        if struck == "late":
            await self.hop(rng.uniform(0.0, STALL_S))
        if struck == "lost":
            raise Unavailable(f"{target}: no answer")
        return answer


class _Wired:
    def __init__(self, process: Process, port: object, target: str, rng: random.Random) -> None:
        self._process, self._port, self._target, self._rng = process, port, target, rng

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._port, method)
        if not inspect.iscoroutinefunction(found):
            return found

        @wraps(found)
        async def cross_wire(*args: Any, **kwargs: Any) -> Any:
            return await self._process.across(
                self._target, self._rng, lambda: found(*args, **kwargs)
            )

        # Looked up once: a wire is crossed some hundred thousand times in a long run.
        setattr(self, method, cross_wire)
        return cross_wire
