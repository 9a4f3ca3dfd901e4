"""Time for tests."""

from __future__ import annotations

from typing import Any


class Clock:
    """Clock that changes only when moved."""

    def __init__(self, now: Any = 0.0) -> None:
        self.now = now

    def __call__(self) -> Any:
        return self.now
