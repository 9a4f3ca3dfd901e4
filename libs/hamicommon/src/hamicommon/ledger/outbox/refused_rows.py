"""Rows of the outbox that the bus refuses: when each is tried again, and which are given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cachetools import FIFOCache

# A row is parked after so many refusals, each while others were stored; with doubled waits between
# them that takes four minutes, in which a bus that is short of something recovers.
MAX_REFUSALS = 8
# While the bus stores nothing at all, a row waits no longer than this for its return.
UNAVAILABLE_RETRY_S = 15.0
# Refused rows that a relay remembers; a forgotten one is counted from 0 again.
MAX_ROWS = 10_000


@dataclass(slots=True)
class _Refusal:
    """Attempts in vain at one row, and those of them that were the row's own fault."""

    attempts: int
    counted: int
    stored_before: int
    due_at: float


RowKey = tuple[str, int]
"""Table and id."""


class RefusedRows:
    """Rows that the bus refused, and when each is due again.

    A refusal counts against the row when the bus has stored another one since the attempt before.
    """

    def __init__(self, clock: Callable[[], float], *, retry_s: float) -> None:
        """`clock`: seconds; a row is tried again after `retry_s`, and then ever more rarely."""
        self._clock = clock
        self._retry_s = retry_s
        self._stored = self._stored_before = 0
        self._rows: FIFOCache[RowKey, _Refusal] = FIFOCache(MAX_ROWS)

    def waiting_ids(self, table: str) -> list[int]:
        """Return the ids of the table's rows that are not due."""
        now = self._clock()
        return [
            row_id
            for (owner, row_id), refusal in self._rows.items()
            if owner == table and refusal.due_at > now
        ]

    def on_stored(self, keys: Iterable[RowKey]) -> None:
        """Note which rows of one batch the bus stored; if there are any, it is available."""
        self._stored_before = self._stored
        for key in keys:
            self._rows.pop(key, None)
            self._stored += 1
        if self._stored > self._stored_before:
            for refusal in self._rows.values():
                if not refusal.counted:
                    refusal.due_at = 0.0

    def on_refused(self, key: RowKey) -> bool:
        """Note a row that the bus refused, after `on_stored` of its batch; True: give it up."""
        refusal = self._rows.setdefault(key, _Refusal(0, 0, self._stored_before, 0.0))
        blamed = self._stored > refusal.stored_before
        refusal.attempts += 1
        refusal.counted += blamed
        refusal.stored_before = self._stored
        wait_s = self._retry_s * 2.0 ** min(refusal.attempts - 1, MAX_REFUSALS)
        refusal.due_at = self._clock() + (wait_s if blamed else min(wait_s, UNAVAILABLE_RETRY_S))
        return refusal.counted >= MAX_REFUSALS

    def forget(self, key: RowKey) -> None:
        """Forget a row that was given up."""
        self._rows.pop(key, None)
