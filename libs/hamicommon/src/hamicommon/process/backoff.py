"""Pauses between attempts that double after each failure up to a maximum.

A random part of up to half is left out, so that a thousand nodes that lost one backend in the same
moment do not come back to it in the same moment.
"""

from __future__ import annotations

import random


class Backoff:
    """Growing pauses between attempts."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min(min_s, max_s)
        self._max_s = max_s
        self._next_s = self._min_s

    def next_s(self) -> float:
        """Return the seconds to wait after this failure, at most `max_s`."""
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, self._max_s)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next_s = self._min_s
