"""Buckets that are over are summed up, and old days go."""

from datetime import datetime, timedelta

import pytest
from hami_metrics.domain.rollup import COARSE_S, FINE_S
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory, UsageRetention, keep_days
from hamicommon.errors import Conflict, Unavailable

from tests.unit.metrics.usage_store import GRACE_S, START, Clock, FakeStore, ingest, usage, value


async def test_a_bucket_is_summed_up_once_it_is_over(
    history: UsageHistory, store: FakeStore, clock: Clock
) -> None:
    await ingest(history, usage(1, START + timedelta(seconds=299)))

    clock.now = START + timedelta(seconds=FINE_S + GRACE_S - 1)
    assert await history.sum_up() == 0
    clock.now = START + timedelta(seconds=FINE_S + GRACE_S)
    assert await history.sum_up() == 1
    assert await history.sum_up() == 0
    assert {key[0] for key in store.sums} == {FINE_S, COARSE_S}


async def test_a_late_sample_is_summed_up_again(
    history: UsageHistory, store: FakeStore, clock: Clock
) -> None:
    await ingest(history, usage(1, START))
    clock.now = START + timedelta(seconds=FINE_S + GRACE_S)
    await history.sum_up()

    await ingest(history, usage(2, START + timedelta(seconds=10)))
    assert await history.sum_up() == 1

    assert set(store.sums.values()) == {2}


async def test_while_postgres_is_away_nothing_is_lost_and_it_is_counted(
    history: UsageHistory, store: FakeStore, clock: Clock, instruments: MetricsInstruments
) -> None:
    store.away = True
    with pytest.raises(Unavailable):
        await ingest(history, usage(1, START))
    assert value(instruments, "hami_metrics_store_failures_total", what="samples") == 1

    store.away = False
    await ingest(history, usage(1, START))
    store.away = True
    clock.now = START + timedelta(seconds=FINE_S + GRACE_S)
    with pytest.raises(Unavailable):
        await history.sum_up()

    store.away = False
    assert await history.sum_up() == 1


@pytest.mark.parametrize("error", [ValueError("odd"), Conflict("a lock was not granted")])
async def test_buckets_around_a_poisonous_one_are_summed_up(
    error: Exception,
    store: FakeStore,
    history: UsageHistory,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = [START + timedelta(seconds=FINE_S * number) for number in range(3)]
    for sequence, start in enumerate(starts, 1):
        await ingest(history, usage(sequence, start))
    clock.now = START + timedelta(hours=1)
    sum_up = store.sum_up

    async def one_fails(node: str, start: datetime) -> None:
        if start == starts[1]:
            raise error
        await sum_up(node, start)

    monkeypatch.setattr(store, "sum_up", one_fails)
    assert await history.sum_up() == 2
    monkeypatch.undo()

    # A lost race is tried again; what fails in an unknown way waits for the next sample.
    assert await history.sum_up() == (1 if isinstance(error, Conflict) else 0)


async def test_today_and_tomorrow_have_room_and_old_days_go(store: FakeStore) -> None:
    today = START.date()
    store.days = {today - timedelta(days=n) for n in range(6)}

    dropped = await keep_days(
        store,
        UsageRetention(raw_days=3, fine_days=14, coarse_days=400, day_days=1830),
        now=START,
    )

    assert dropped == [today - timedelta(days=5), today - timedelta(days=4)]
    assert max(store.days) == today + timedelta(days=1)
    assert store.forgotten == {
        3600: START - timedelta(days=400),
        86400: START - timedelta(days=1830),
    }
    assert store.capacity_forgotten == store.forgotten
