"""A circuit breaker: who left a call unanswered is not asked again for a while."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Circuit:
    """Closed while calls are answered; open for `open_s` after one was not.

    Then one caller tries: its answer closes the circuit, and until then nobody else asks. All times
    are seconds of one monotonic clock.
    """

    open_s: float
    _open_until_s: float | None = None

    def allows(self, now_s: float) -> bool:
        """Whether the caller may ask now; it must then call `failed` or `answered`."""
        if self._open_until_s is None:
            return True
        if now_s < self._open_until_s:
            return False
        # The caller is the one that tries; one that never reports holds the others for `open_s`.
        self._open_until_s = now_s + self.open_s
        return True

    def failed(self, now_s: float) -> None:
        """The call was not answered."""
        self._open_until_s = now_s + self.open_s

    def answered(self) -> None:
        """The call was answered."""
        self._open_until_s = None
