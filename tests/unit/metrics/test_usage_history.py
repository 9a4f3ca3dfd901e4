"""Reports of use become samples, each once, on fakes of the ports."""

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hami_metrics.domain.samples import Sample
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory
from hamicommon.errors import InvalidRequest, Unavailable

from tests.unit.metrics.usage_store import START, Clock, FakeStore, ingest, usage, value


async def test_a_report_becomes_one_sample_per_card_and_container(
    history: UsageHistory, store: FakeStore
) -> None:
    await ingest(history, usage(1, START))

    assert {row.series.container for row in store.rows.values()} == {"", "c"}


async def test_a_limit_of_zero_is_no_limit(history: UsageHistory, store: FakeStore) -> None:
    await ingest(history, usage(1, START))

    assert {row.memory_limit_bytes for row in store.rows.values()} == {None}


async def test_a_repeated_report_stores_nothing_new(
    history: UsageHistory, instruments: MetricsInstruments
) -> None:
    await ingest(history, usage(1, START))
    await ingest(history, usage(1, START))

    name = "hami_usage_samples_total"
    assert value(instruments, name, result="stored") == 2
    assert value(instruments, name, result="repeated") == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b'{"version": 2}', b"[]"],
    ids=["empty", "no fields", "other version", "a list"],
)
async def test_an_unreadable_report_is_refused_in_one_sentence(
    history: UsageHistory, body: bytes
) -> None:
    with pytest.raises(InvalidRequest, match=r"^usage report(: version is 2| is malformed: )"):
        await ingest(history, body)


async def test_reports_that_came_together_are_one_write(
    history: UsageHistory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    write = store.write

    async def counted(samples: Sequence[Sample]) -> int:
        writes.append(len(samples))
        return await write(samples)

    monkeypatch.setattr(store, "write", counted)
    reports = [usage(number, START + timedelta(seconds=number)) for number in range(3)]

    *stored, refused = await history.ingest([*reports, b"{}"])

    assert stored == [None, None, None]
    assert isinstance(refused, InvalidRequest)
    assert writes == [6]


async def test_one_report_that_postgres_does_not_take_keeps_no_other_from_being_stored(
    history: UsageHistory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store.write

    async def refuse_one(samples: Sequence[Sample]) -> int:
        if any(sample.sampled_at == START + timedelta(seconds=1) for sample in samples):
            raise ValueError("value out of range")
        return await write(samples)

    monkeypatch.setattr(store, "write", refuse_one)
    reports = [usage(number, START + timedelta(seconds=number)) for number in range(3)]

    first, second, third = await history.ingest(reports)

    assert (first, third) == (None, None)
    assert isinstance(second, ValueError)
    assert len(store.rows) == 4


async def test_while_postgres_is_away_every_readable_report_comes_again(
    history: UsageHistory, store: FakeStore
) -> None:
    store.away = True

    first, second = await history.ingest([usage(1, START), b""])

    assert isinstance(first, Unavailable)
    assert isinstance(second, InvalidRequest)


async def test_a_report_that_would_store_rows_without_end_is_refused(
    history: UsageHistory, store: FakeStore
) -> None:
    report = json.loads(usage(1, START))
    report["unchanged"] = [{"rounds": 10_000, "devices": report["devices"]}]
    report["earlier_rounds"] = [START.isoformat()] * 10_000

    with pytest.raises(InvalidRequest, match=r"earlier_rounds: .* at most 60 items"):
        await ingest(history, json.dumps(report).encode())

    assert store.rows == {}


async def test_a_report_that_never_comes_is_counted_as_lost(
    history: UsageHistory, clock: Clock, instruments: MetricsInstruments
) -> None:
    await ingest(history, usage(1, START))
    await ingest(history, usage(3, START + timedelta(seconds=10)))
    assert value(instruments, "hami_metrics_usage_reports_missing") == 1

    clock.now = START + timedelta(minutes=11)
    await history.sum_up()

    assert value(instruments, "hami_metrics_usage_reports_lost_total") == 1
