"""Usage history, retention and the ledger's view, on fakes of the ports."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import count

import pytest
from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.domain.rollup import COARSE_S, FINE_S, bucket_of
from hami_metrics.domain.samples import Sample
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import LedgerFigures, UsageHistory, UsageRetention, keep_days
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.events import ContainerSample, DeviceSample, Usage

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
GRACE_S = 20.0


class FakeStore:
    """`ports.UsageStore` in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], Sample] = {}
        self.sums: dict[tuple[object, ...], int] = {}
        """(length, start, series) -> samples."""
        self.days: set[date] = set()
        self.forgotten: dict[int, datetime] = {}
        self.capacity_forgotten: dict[int, datetime] = {}
        self.away = False

    def _here(self) -> None:
        if self.away:
            raise Unavailable("Postgres: away")

    async def write(self, samples: Sequence[Sample]) -> int:
        self._here()
        before = len(self.rows)
        for sample in samples:
            self.rows.setdefault((sample.sampled_at, sample.series), sample)
        return len(self.rows) - before

    async def sum_up(self, node: str, start: datetime) -> None:
        self._here()
        for bucket_s, begin in ((FINE_S, start), (COARSE_S, bucket_of(start, COARSE_S))):
            end = begin + timedelta(seconds=bucket_s)
            held = [
                row.series
                for row in self.rows.values()
                if row.series.node == node and begin <= row.sampled_at < end
            ]
            self.sums |= {(bucket_s, begin, series): held.count(series) for series in held}

    async def unsummed(self, since: datetime) -> list[tuple[str, datetime]]:
        self._here()
        return []

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        self._here()
        gone = sorted(day for day in self.days if day < today - timedelta(days=keep_days))
        self.days = (self.days | {today, today + timedelta(days=1)}) - set(gone)
        return gone

    async def sum_up_namespaces(self, now: datetime) -> int:
        self._here()
        return 0

    async def forget_namespaces(self, bucket_s: int, before: datetime) -> int:
        self._here()
        self.forgotten[bucket_s] = before
        return 0

    async def sum_up_capacity(self, now: datetime) -> int:
        self._here()
        return 0

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        self._here()
        self.capacity_forgotten[bucket_s] = before
        return 0

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        self._here()
        gone = [key for key in self.sums if key[0] == bucket_s and key[1] < before]
        for key in gone:
            del self.sums[key]
        return len(gone)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def usage(sequence: int, at: datetime, *, core: float | None = 50.0) -> bytes:
    return (
        Usage(
            node="n1",
            agent_id="a1",
            sequence=sequence,
            sampled_at=at,
            devices=(DeviceSample(uuid="GPU-1", index=0, type="A100", gpu_percent=core),),
            containers=(
                ContainerSample(
                    pod_uid="u1",
                    namespace="ns",
                    pod="p",
                    container="c",
                    vdevice_index=0,
                    uuid="GPU-1",
                    memory_used_bytes=100,
                    memory_limit_bytes=0,
                    core_percent=core,
                ),
            ),
        )
        .model_dump_json()
        .encode()
    )


async def ingest(history: UsageHistory, body: bytes) -> None:
    """One report, as if it came alone. Raises: what the bus is answered."""
    (answer,) = await history.ingest([body])
    if answer is not None:
        raise answer


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def instruments() -> MetricsInstruments:
    return MetricsInstruments()


@pytest.fixture
def history(store: FakeStore, clock: Clock, instruments: MetricsInstruments) -> UsageHistory:
    return UsageHistory(store, instruments, clock, grace_s=GRACE_S)


def value(instruments: MetricsInstruments, name: str, **labels: str) -> float:
    return instruments.registry.get_sample_value(name, labels) or 0.0


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


async def test_a_report_that_never_comes_is_counted_as_lost(
    history: UsageHistory, clock: Clock, instruments: MetricsInstruments
) -> None:
    await ingest(history, usage(1, START))
    await ingest(history, usage(3, START + timedelta(seconds=10)))
    assert value(instruments, "hami_metrics_usage_reports_missing") == 1

    clock.now = START + timedelta(minutes=11)
    await history.sum_up()

    assert value(instruments, "hami_metrics_usage_reports_lost_total") == 1


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


EMPTY = ClusterSnapshot(
    taken_at=START,
    cards=(),
    slices=(),
    instances=(),
    quotas=(),
    allocations_by_state={},
    decisions_by_outcome={},
    pending={},
    heartbeats={},
)


class FakeLedger:
    def __init__(self) -> None:
        self.reads = count()
        self.away = False

    async def snapshot(self) -> ClusterSnapshot:
        if self.away:
            raise Unavailable("Postgres: away")
        next(self.reads)
        return EMPTY


async def test_a_stale_reading_of_the_ledger_is_unknown(clock: Clock) -> None:
    ledger = FakeLedger()
    view = LedgerFigures(ledger, clock, stale_s=30)
    assert view.newest() is None
    assert math.isnan(view.age_s)
    assert view.not_ready_reasons() == ["the ledger was not read yet"]

    await view.refresh()
    assert view.newest() is EMPTY
    assert view.not_ready_reasons() == []

    ledger.away = True
    clock.now += timedelta(seconds=30)
    with pytest.raises(Unavailable):
        await view.refresh()
    assert view.newest() is EMPTY
    clock.now += timedelta(seconds=1)
    assert view.newest() is None
    assert view.not_ready_reasons() == ["the last reading of the ledger is 31 s old"]


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
