"""Buckets of time."""

from datetime import UTC, datetime, timedelta

from hami_metrics.domain.samples import FINE_S, bucket_of

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


def test_a_bucket_starts_at_a_multiple_of_its_length() -> None:
    assert bucket_of(START + timedelta(seconds=299.9), FINE_S) == START
    assert bucket_of(START + timedelta(seconds=300), FINE_S) == START + timedelta(seconds=300)
