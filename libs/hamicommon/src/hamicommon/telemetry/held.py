"""Ended spans that wait until there is time for them.

What becomes of a span (sampling, clipping, its line or its export) costs as much as making it, and
in a burst that is time which the next decision needs. A service that has bursts lets its spans wait
(`hold`) and lets go of them when nobody waits for it (`release`); all others pass them on at once.
"""

from __future__ import annotations

from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

MOST_HELD = 8192
"""Spans that wait, some 2 kB each; further ones are passed on at once, out of their order."""


class HeldSpans(SpanProcessor):
    """Passes ended spans on: at once, or when they are let go of."""

    def __init__(self, following: SpanProcessor, *, most: int = MOST_HELD) -> None:
        self._following = following
        self._most = most
        self._holding = False
        self._spans: deque[ReadableSpan] = deque()

    def hold(self) -> None:
        """From now on spans wait for `release`."""
        self._holding = True

    def release(self, most: int) -> bool:
        """Passes on so many of those that wait, the oldest first; False when none is left."""
        for _ in range(most):
            try:
                span = self._spans.popleft()
            except IndexError:
                return False
            self._following.on_end(span)
        return bool(self._spans)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Passes it on."""
        self._following.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Lets it wait, or passes it on."""
        if self._holding and len(self._spans) < self._most:
            self._spans.append(span)
        else:
            self._following.on_end(span)

    def shutdown(self) -> None:
        """Passes on what waits, and ends what follows."""
        self._holding = False
        self.release(self._most)
        self._following.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Passes on what waits; whether what follows exported what it holds."""
        self.release(self._most)
        return self._following.force_flush(timeout_millis)
