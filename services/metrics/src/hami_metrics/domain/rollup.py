"""Lengths of the buckets over which usage is summed up, and which bucket a moment is in. Pure.

A bucket keeps sums, maxima and the number of samples, so the average over any longer window is
exact: sum of sums by sum of counts. The sums themselves are made where the samples are
(`adapters/rollups.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime

FINE_S = 300
COARSE_S = 3600
DAY_S = 86400


def bucket_of(at: datetime, bucket_s: int) -> datetime:
    """The start of the bucket that `at` is in; buckets are aligned to the Unix epoch."""
    seconds = int(at.timestamp()) // bucket_s * bucket_s
    return datetime.fromtimestamp(seconds, UTC)
