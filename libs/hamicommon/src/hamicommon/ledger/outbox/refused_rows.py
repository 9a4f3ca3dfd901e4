"""Rows of the outbox that the bus refuses: when each is tried again, and which are given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# A row is parked after so many refusals, each while others were stored; with doubled waits between
# them that takes four minutes, in which a bus that is short of something recovers.
MOST_REFUSALS = 8
# While the bus stores nothing at all, a row waits no longer than this for its return.
AWAY_MOST_S = 15.0
# Refused rows that a relay remembers; a forgotten one is counted from 0 again.
MOST_REFUSED = 10_000


@dataclass(slots=True)
class _Refusal:
    """How a row fared: attempts in vain, and those of them that were the row's own fault."""

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
        self._rows: OrderedDict[RowKey, _Refusal] = OrderedDict()

    def waiting(self, table: str) -> list[int]:
        """Ids of rows of the table that are not due."""
        now = self._clock()
        return [
            row_id
            for (owner, row_id), refusal in self._rows.items()
            if owner == table and refusal.due_at > now
        ]

    def stored(self, keys: Iterable[RowKey]) -> None:
        """Of one batch, the bus stored these; where there are some, it is not away (any more)."""
        self._stored_before = self._stored
        for key in keys:
            self._rows.pop(key, None)
            self._stored += 1
        if self._stored > self._stored_before:
            for refusal in self._rows.values():
                if not refusal.counted:
                    refusal.due_at = 0.0

    def refused(self, key: RowKey) -> bool:
        """The bus refused the row, in the batch that `stored` was called for; True: for good."""
        refusal = self._rows.setdefault(key, _Refusal(0, 0, self._stored_before, 0.0))
        blamed = self._stored > refusal.stored_before
        refusal.attempts += 1
        refusal.counted += blamed
        refusal.stored_before = self._stored
        wait_s = self._retry_s * 2.0 ** min(refusal.attempts - 1, MOST_REFUSALS)
        refusal.due_at = self._clock() + (wait_s if blamed else min(wait_s, AWAY_MOST_S))
        while len(self._rows) > MOST_REFUSED:
            self._rows.popitem(last=False)
        return refusal.counted >= MOST_REFUSALS

    def forget(self, key: RowKey) -> None:
        """The row was given up."""
        self._rows.pop(key, None)
