"""Queue of keys whose objects changed, each retried until it succeeds.

As client-go's work queue. Handlers of informers add keys; the worker reads the newest state of each
when its turn comes. A key that fails is due again after a second, then twice as long each time, up
to five minutes, and immediately when it is added again: its object is another one then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hamicommon.clipping import clip
from hamicommon.errors import HamiError, Unavailable
from hamicommon.process.bulkhead import Bulkhead

logger = logging.getLogger(__name__)

MIN_BACKOFF_S = 1.0
MAX_BACKOFF_S = 300.0
MAX_UNAVAILABLE_BACKOFF_S = 5.0
"""Maximum pause while a backend is unavailable."""
_NOW = float("-inf")


@dataclass(eq=False)
class WorkQueue:
    """Queue of one worker; unexpected errors of `work` are counted by `bulkhead` and dropped.

    `clock`: seconds; the event loop's own if None.
    """

    name: str
    work: Callable[[str], Awaitable[object]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] | None = None
    _due_at: dict[str, float] = field(default_factory=dict, init=False)
    _backoffs: dict[str, float] = field(default_factory=dict, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def add(self, key: str) -> None:
        """Make the key due now, even after a failure."""
        self._backoffs.pop(key, None)
        self._due_at[key] = _NOW
        self._woken.set()

    def revisit(self, key: str) -> None:
        """Make the key due now, unless it failed and waits."""
        self._due_at.setdefault(key, _NOW)
        self._woken.set()

    def discard(self, key: str) -> None:
        """Forget the key."""
        self._due_at.pop(key, None)
        self._backoffs.pop(key, None)

    def __contains__(self, key: object) -> bool:
        return key in self._due_at

    def due(self) -> list[str]:
        """Return the due keys in the order in which they were added."""
        now = self._now()
        return [key for key, due_at in self._due_at.items() if due_at <= now]

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self._woken.clear()
            next_at = min(self._due_at.values(), default=None)
            if next_at is None or next_at > self._now():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if next_at is None else next_at - self._now()):
                        await self._woken.wait()
            if not await self.run_due():
                await asyncio.sleep(MIN_BACKOFF_S)

    async def run_due(self) -> bool:
        """Process each due key; return False, and stop, if a backend is unavailable."""
        for key in self.due():
            if self._due_at.pop(key, None) is None:
                continue
            try:
                with self.bulkhead.item(self.name, key):
                    await self.work(key)
                self._backoffs.pop(key, None)
            except HamiError as exc:
                extra = {"queue": self.name, "item": clip(key), "error": clip(str(exc))}
                logger.warning("Failed to process a watched change, retrying", extra=extra)
                is_unavailable = isinstance(exc, Unavailable)
                if key not in self._due_at:  # otherwise it changed since, and is due
                    self._retry(key, MAX_UNAVAILABLE_BACKOFF_S if is_unavailable else MAX_BACKOFF_S)
                if is_unavailable:
                    return False
        return True

    def _retry(self, key: str, max_s: float) -> None:
        backoff_s = min(2 * self._backoffs.get(key, MIN_BACKOFF_S / 2), max_s)
        self._backoffs[key] = backoff_s
        self._due_at[key] = self._now() + backoff_s

    def _now(self) -> float:
        return (self.clock or asyncio.get_running_loop().time)()
