"""Log an outage once when it begins and once when it ends, however often calls are retried.

A failure before the first success is not yet an outage: all parts of a cluster start concurrently,
in any order. Such a failure is logged at DEBUG, and as a warning once it has lasted
`STARTS_WITHIN_S`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

STARTS_WITHIN_S = 30.0


class Outage:
    """State of an outage of one backend that is retried."""

    def __init__(
        self,
        logger: logging.Logger,
        *,
        failed: str,
        again: str,
        about: Mapping[str, str] | None = None,
        starts_within_s: float | None = None,
        recovery_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`failed` and `again`: messages for beginning and end; `about`: fields of both.

        `starts_within_s`: grace before the first success; None: `STARTS_WITHIN_S`.
        `recovery_s`: the outage ends when no call has failed for this long, so that alternating
        success and failure is one outage.
        `clock`: seconds.
        """
        self._logger = logger
        self._failed, self._again = failed, again
        self._about = dict(about or {})
        self._starts_within_s = STARTS_WITHIN_S if starts_within_s is None else starts_within_s
        self._recovery_s = recovery_s
        self._clock = clock
        self._since_s: float | None = None
        self._last_s = float("-inf")
        self._warned = False
        self._worked = False

    def on_failure(self, error: BaseException | str) -> None:
        """Record a failed attempt."""
        extra = {**self._about, "error": str(error) or type(error).__name__}
        self._last_s = self._clock()
        if self._since_s is None:
            self._since_s = self._last_s
            if not self._worked:
                self._logger.debug(self._failed, extra=extra)
        lasted_s = self._last_s - self._since_s
        if not self._warned and (self._worked or lasted_s >= self._starts_within_s):
            self._warned = True
            self._logger.warning(self._failed, extra=extra)

    def on_success(self) -> bool:
        """Record a successful attempt; return whether it ended an outage that was logged."""
        if self._clock() - self._last_s < self._recovery_s:
            return False
        warned, self._warned, self._worked = self._warned, False, True
        if warned and self._since_s is not None:
            lasted_s = round(self._clock() - self._since_s, 1)
            self._logger.info(self._again, extra={**self._about, "lasted_s": lasted_s})
        self._since_s = None
        return warned
