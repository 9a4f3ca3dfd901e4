"""Sums over time."""

from datetime import UTC, datetime, timedelta

import pytest
from hami_metrics.domain.rollup import COARSE_S, FINE_S, bucket_of, merge, roll_up
from hami_metrics.domain.samples import Sample, Series
from hypothesis import given, settings
from hypothesis import strategies as st

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
SERIES = Series(node="n1", device_uuid="GPU-1", pod_uid="u1", namespace="ns", pod_name="p")


def sample(
    offset_s: float,
    *,
    memory: int | None = 0,
    core: float | None = 0.0,
    limit: int | None = None,
    series: Series = SERIES,
) -> Sample:
    return Sample(
        series=series,
        sampled_at=START + timedelta(seconds=offset_s),
        memory_used_bytes=memory,
        memory_limit_bytes=limit,
        core_percent=core,
    )


def test_a_bucket_starts_at_a_multiple_of_its_length() -> None:
    assert bucket_of(START + timedelta(seconds=299.9), FINE_S) == START
    assert bucket_of(START + timedelta(seconds=300), FINE_S) == START + timedelta(seconds=300)


def test_sums_maxima_and_counts_are_kept_per_series_and_bucket() -> None:
    other = Series(node="n1", device_uuid="GPU-0")
    rollups = roll_up(
        [
            sample(0, memory=100, core=20.0, limit=1000),
            sample(10, memory=300, core=60.0, limit=2000),
            sample(301, memory=7, core=1.0),
            sample(0, memory=5, core=None, series=other),
        ],
        FINE_S,
    )

    assert [(r.series.device_uuid, r.bucket_start) for r in rollups] == [
        ("GPU-0", START),
        ("GPU-1", START),
        ("GPU-1", START + timedelta(seconds=300)),
    ]
    full = rollups[1]
    assert full.sample_count == 2
    assert full.memory_used_avg_bytes == 200
    assert full.memory_used_max_bytes == 300
    assert full.memory_limit_max_bytes == 2000
    assert full.core_percent_avg == 40
    assert full.core_percent_max == 60
    assert full.gpu_seconds(10.0) == pytest.approx(8.0)


def test_what_is_wholly_unknown_stays_unknown() -> None:
    (rollup,) = roll_up([sample(0, memory=None, core=None)], FINE_S)

    assert rollup.core_percent_sum is None
    assert rollup.core_percent_avg is None
    assert rollup.core_percent_max is None
    assert rollup.memory_used_avg_bytes is None
    assert rollup.gpu_seconds(5.0) is None


def test_an_unknown_reading_does_not_pull_the_average_down() -> None:
    (rollup,) = roll_up([sample(0, core=40.0), sample(5, core=None), sample(9, core=60.0)], FINE_S)

    assert rollup.sample_count == 3
    assert rollup.core_percent_avg == pytest.approx(50.0)


readings = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=3599),
        st.integers(min_value=0, max_value=2**37),
        st.floats(min_value=0, max_value=100),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60)
@given(readings)
def test_an_hour_out_of_five_minutes_equals_an_hour_out_of_samples(
    values: list[tuple[int, int, float]],
) -> None:
    samples = [sample(offset, memory=memory, core=core) for offset, memory, core in values]

    (direct,) = roll_up(samples, COARSE_S)
    (merged,) = merge(roll_up(samples, FINE_S), COARSE_S)

    assert merged.sample_count == direct.sample_count
    assert merged.memory_used_max_bytes == direct.memory_used_max_bytes
    assert merged.core_percent_max == direct.core_percent_max
    assert merged.memory_used_sum_bytes == pytest.approx(direct.memory_used_sum_bytes)
    assert merged.core_percent_sum == pytest.approx(direct.core_percent_sum)


@settings(max_examples=30)
@given(readings, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(
    values: list[tuple[int, int, float]], random: object
) -> None:
    samples = [sample(offset, memory=memory) for offset, memory, _ in values]
    shuffled = list(samples)
    random.shuffle(shuffled)

    assert roll_up(shuffled, FINE_S) == roll_up(samples, FINE_S)
