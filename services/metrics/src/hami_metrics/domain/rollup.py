"""Sums over time: samples to five-minute buckets, five-minute buckets to hours. Pure.

A bucket keeps sums, maxima and the number of samples, so the average over any longer window is
exact: sum of sums by sum of counts. An unknown reading counts as the average of the known ones of
its bucket; where all are unknown, the result is unknown (None), never 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from hami_metrics.domain.samples import Sample, Series

_Number = TypeVar("_Number", int, float)

FINE_S = 300
COARSE_S = 3600
DAY_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollup:
    """One series over one bucket of `bucket_s` seconds that begins at `bucket_start` (UTC)."""

    series: Series
    bucket_start: datetime
    bucket_s: int
    sample_count: int
    memory_used_sum_bytes: float | None = None
    memory_used_max_bytes: int | None = None
    memory_limit_max_bytes: int | None = None
    core_percent_sum: float | None = None
    core_percent_max: float | None = None

    @property
    def memory_used_avg_bytes(self) -> float | None:
        """Average over the bucket's samples."""
        total = self.memory_used_sum_bytes
        return None if total is None else total / self.sample_count

    @property
    def core_percent_avg(self) -> float | None:
        """Average over the bucket's samples, percent of one card."""
        total = self.core_percent_sum
        return None if total is None else total / self.sample_count

    def gpu_seconds(self, sample_interval_s: float) -> float | None:
        """Seconds of a whole card that were worked, when samples are `sample_interval_s` apart."""
        total = self.core_percent_sum
        return None if total is None else total / 100 * sample_interval_s


def bucket_of(at: datetime, bucket_s: int) -> datetime:
    """The start of the bucket that `at` is in; buckets are aligned to the Unix epoch."""
    seconds = int(at.timestamp()) // bucket_s * bucket_s
    return datetime.fromtimestamp(seconds, UTC)


def roll_up(samples: Iterable[Sample], bucket_s: int) -> list[Rollup]:
    """One rollup per series and bucket, in the order in which rows are written."""
    groups: dict[tuple[datetime, Series], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[bucket_of(sample.sampled_at, bucket_s), sample.series].append(sample)
    return [
        Rollup(
            series=series,
            bucket_start=start,
            bucket_s=bucket_s,
            sample_count=len(group),
            memory_used_sum_bytes=_sum([(sample.memory_used_bytes, 1) for sample in group]),
            memory_used_max_bytes=_max([sample.memory_used_bytes for sample in group]),
            memory_limit_max_bytes=_max([sample.memory_limit_bytes for sample in group]),
            core_percent_sum=_sum([(sample.core_percent, 1) for sample in group]),
            core_percent_max=_max([sample.core_percent for sample in group]),
        )
        for (start, series), group in sorted(groups.items(), key=_row_order)
    ]


def merge(rollups: Iterable[Rollup], bucket_s: int) -> list[Rollup]:
    """Rollups of longer buckets out of shorter ones; `bucket_s` is a multiple of theirs."""
    groups: dict[tuple[datetime, Series], list[Rollup]] = defaultdict(list)
    for rollup in rollups:
        groups[bucket_of(rollup.bucket_start, bucket_s), rollup.series].append(rollup)
    return [
        Rollup(
            series=series,
            bucket_start=start,
            bucket_s=bucket_s,
            sample_count=sum(part.sample_count for part in group),
            memory_used_sum_bytes=_sum([(p.memory_used_sum_bytes, p.sample_count) for p in group]),
            memory_used_max_bytes=_max([part.memory_used_max_bytes for part in group]),
            memory_limit_max_bytes=_max([part.memory_limit_max_bytes for part in group]),
            core_percent_sum=_sum([(p.core_percent_sum, p.sample_count) for p in group]),
            core_percent_max=_max([part.core_percent_max for part in group]),
        )
        for (start, series), group in sorted(groups.items(), key=_row_order)
    ]


def _row_order(item: tuple[tuple[datetime, Series], object]) -> tuple[object, ...]:
    (start, series), _ = item
    return (start, *series.sort_key)


def _sum(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """Sum of (sum, count) parts; parts of unknown sum weigh in with the average of the others."""
    known = sum(count for value, count in parts if value is not None)
    if not known:
        return None
    total = float(sum(value for value, _ in parts if value is not None))
    return total * sum(count for _, count in parts) / known


def _max(values: Sequence[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)
