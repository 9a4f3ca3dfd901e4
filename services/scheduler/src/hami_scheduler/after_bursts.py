"""What is left of a call when its answer has left: its metrics and its spans.

They need some ten microseconds each and nobody's answer, and in a burst the next call needs those.
So they are done when no decision and no binding has been waited for for a moment, after a second at
the latest, and before each scrape. `deferred.py` has what waits for others: writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from hamicommon.telemetry.held import HeldSpans

logger = logging.getLogger(__name__)

Work = Callable[[], None]

EVERY_S = 0.25
MOST_S = 1.0
"""So long at most it is left while decisions go on."""
AT_ONCE = 32
"""Pieces, and spans, between which others have their turn: a millisecond."""


class AfterBursts:
    """Keeps it, and does it in order."""

    def __init__(
        self, calm: Callable[[float], Awaitable[None]], *, spans: HeldSpans | None = None
    ) -> None:
        """`calm`: returns when nobody waits for a decision or a binding, after so many seconds at
        the latest (`DeferredWrites.calm`); `spans`: of this process, which wait for it too."""
        self._calm = calm
        self._spans = spans
        self._work: deque[Work] = deque()

    def put(self, work: Work) -> None:
        """It is done later; never waits."""
        self._work.append(work)

    async def run(self) -> None:
        """Works until cancelled; what is left then is done at once."""
        if self._spans is not None:
            self._spans.hold()
        try:
            while True:
                # By the clock: no event reports that a span has ended.
                await asyncio.sleep(EVERY_S)
                await self._calm(MOST_S)
                more = True
                while more:
                    more = self._some()
                    await asyncio.sleep(0)  # a call that came has its turn
        finally:
            self.finish()

    def finish(self) -> None:
        """Does all of it now, but for the spans."""
        while self._work:
            self._carry_out()

    def _some(self) -> bool:
        """Does a few; whether there are more."""
        for _ in range(min(AT_ONCE, len(self._work))):
            self._carry_out()
        more = self._spans is not None and self._spans.release(AT_ONCE)
        return more or bool(self._work)

    def _carry_out(self) -> None:
        try:
            self._work.popleft()()
        except Exception:  # the outermost frame: it takes no other call's with it
            logger.exception("failed after the answer")
