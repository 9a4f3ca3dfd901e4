"""How many samples a node may have stored, so that no node fills the disk for all.

Every node has a bucket of tokens, one for each sample. The time is the bus's, at which a report
arrived there: an hour of reports that is read in a minute costs what it would have cost then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hamicommon.events import USAGE_MAX_ROWS

ROWS_PER_MINUTE = 25_000
"""16 cards of 10 slices need 10,560 when they are sampled every second, 2,112 by default; 16 cards
of 100 slices 19,392 by default."""
BURST_ROWS = USAGE_MAX_ROWS
"""At once: the largest report that is read at all."""


@dataclass(slots=True)
class _Bucket:
    rows: float
    at: datetime


class RowBudget:
    """The buckets of all nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Bucket] = {}

    def spend(self, node: str, rows: int, *, at: datetime) -> bool:
        """Take so many; False when the node has not as many left, and nothing is taken."""
        bucket = self._nodes.setdefault(node, _Bucket(BURST_ROWS, at))
        passed_s = (at - bucket.at).total_seconds()
        if passed_s > 0:
            bucket.rows = min(BURST_ROWS, bucket.rows + passed_s * ROWS_PER_MINUTE / 60)
            bucket.at = at
        if rows > bucket.rows:
            return False
        bucket.rows -= rows
        return True

    def give_back(self, node: str, rows: int) -> None:
        """The report was not stored and comes again."""
        bucket = self._nodes[node]
        bucket.rows = min(BURST_ROWS, bucket.rows + rows)
