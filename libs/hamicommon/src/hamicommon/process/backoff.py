"""Pauses between the tries of one thing that fails: doubled after each failure, up to a longest.

A random part of up to half is left out, so that a thousand nodes that lost one backend in the same
moment do not come back to it in the same moment.
"""

from __future__ import annotations

import random


class Backoff:
    """The pauses of one thing that is tried."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s = min(first_s, last_s)
        self._last_s = last_s
        self._next_s = self._first_s

    def failed(self) -> float:
        """Seconds to wait after this failure, at most `last_s`."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._last_s)
        return pause_s * random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """The next failure is a first one again."""
        self._next_s = self._first_s
