"""Reports of use become samples, each once, on fakes of the ports."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from hami_metrics.domain.samples import COARSE_S, FINE_S, Sample
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory, UsageRetention, keep_days
from hamicommon.errors import Conflict, InvalidRequest, Unavailable

from tests.unit.clock import Clock
from tests.unit.metrics.usage_store import GRACE_S, START, FakeStore, ingest, message, usage, value


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

    async def count_write(samples: Sequence[Sample]) -> int:
        writes.append(len(samples))
        return await write(samples)

    monkeypatch.setattr(store, "write", count_write)
    reports = [usage(number, START + timedelta(seconds=number)) for number in range(3)]

    *stored, refused = await history.ingest(list(map(message, [*reports, b"{}"])))

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

    first, second, third = await history.ingest(list(map(message, reports)))

    assert (first, third) == (None, None)
    assert isinstance(second, ValueError)
    assert len(store.rows) == 4


async def test_while_postgres_is_away_every_readable_report_comes_again(
    history: UsageHistory, store: FakeStore
) -> None:
    store.away = True

    first, second = await history.ingest([message(usage(1, START)), message(b"")])

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


async def test_rounds_times_samples_are_bounded_before_one_is_made(
    history: UsageHistory, store: FakeStore
) -> None:
    report = json.loads(usage(1, START))
    devices = [{"uuid": f"{number}", "index": 0, "type": "x"} for number in range(1000)]
    report["unchanged"] = [{"rounds": 60, "devices": devices}] * 2
    report["earlier_rounds"] = [(START - timedelta(seconds=60)).isoformat()] * 60

    with pytest.raises(InvalidRequest, match="it has 120002 samples with all of its rounds"):
        await ingest(history, json.dumps(report).encode())

    assert store.rows == {}


async def test_a_node_reports_on_no_other_node(history: UsageHistory, store: FakeStore) -> None:
    (answer,) = await history.ingest([message(usage(1, START), subject="hami.usage.v1.n2")])

    assert str(answer) == "usage report of node n1 came on hami.usage.v1.n2"
    assert store.rows == {}


@pytest.mark.parametrize(
    "granted",
    [("n2", "u1", "ns", "p"), ("n1", "u2", "ns", "p"), ("n1", "u1", "other", "p")],
)
async def test_containers_of_pods_without_a_grant_on_the_node_are_left_out(
    history: UsageHistory,
    store: FakeStore,
    instruments: MetricsInstruments,
    granted: tuple[str, str, str, str],
) -> None:
    store.grants = {granted}

    await ingest(history, usage(1, START))

    assert {row.series.container for row in store.rows.values()} == {""}
    assert value(instruments, "hami_usage_samples_total", result="ungranted") == 1


async def test_a_sample_without_a_pod_is_one_of_a_card_only(history: UsageHistory) -> None:
    report = json.loads(usage(1, START))
    report["containers"][0]["pod_uid"] = ""

    with pytest.raises(InvalidRequest, match=r"pod_uid: .* at least 1 character"):
        await ingest(history, json.dumps(report).encode())


def make_large_report(second: int, *, cards: int) -> bytes:
    """60 rounds of so many cards, none of them the same as in another report."""
    report = json.loads(usage(second, START + timedelta(seconds=second)))
    devices = [{"uuid": f"{number}", "index": 0, "type": "x"} for number in range(cards)]
    rounds = [START + timedelta(seconds=second, microseconds=each) for each in range(1, 61)]
    report |= {"devices": [], "containers": [], "earlier_rounds": [r.isoformat() for r in rounds]}
    report["unchanged"] = [{"rounds": 60, "devices": devices}]
    return json.dumps(report, separators=(",", ":")).encode()


async def test_above_its_budget_a_nodes_reports_are_refused_and_anothers_are_stored(
    history: UsageHistory, store: FakeStore
) -> None:
    reports = [message(make_large_report(second, cards=1000)) for second in range(4)]
    other = usage(1, START).replace(b'"node":"n1"', b'"node":"n2"')

    *answers, others = await history.ingest([*reports, message(other, subject="hami.usage.v1.n2")])

    assert answers[0] is None
    assert all("more than 25000 samples a minute" in str(answer) for answer in answers[1:])
    assert others is None
    assert sum(row.series.node == "n1" for row in store.rows.values()) == 60_000
    # The budget is of the bus's time: a minute and a half later there is room for one more.
    later = START + timedelta(seconds=93)
    assert await history.ingest([message(make_large_report(93, cards=900), received_at=later)]) == [
        None
    ]


async def test_what_was_not_stored_is_not_spent(history: UsageHistory, store: FakeStore) -> None:
    report = [message(make_large_report(0, cards=1000))]
    store.away = True
    for _ in range(3):
        (answer,) = await history.ingest(report)
        assert isinstance(answer, Unavailable)
    store.away = False

    assert await history.ingest(report) == [None]


async def test_many_rows_are_several_writes(
    history: UsageHistory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []

    async def count_write(samples: Sequence[Sample]) -> int:
        writes.append(len(samples))
        return len(samples)

    monkeypatch.setattr(store, "write", count_write)

    await history.ingest([message(make_large_report(second, cards=200)) for second in range(5)])

    assert writes == [24_000, 24_000, 12_000]


async def test_numbers_that_jump_are_kept_in_bounded_memory(
    history: UsageHistory, instruments: MetricsInstruments
) -> None:
    for jump in range(5):
        await ingest(history, usage(1 + jump * 20_000, START + timedelta(seconds=jump)))

    assert value(instruments, "hami_metrics_usage_reports_missing") == 10_000
    assert value(instruments, "hami_metrics_usage_reports_lost_total") == 4 * 19_999 - 10_000


async def test_a_report_that_never_comes_is_counted_as_lost(
    history: UsageHistory, clock: Clock, instruments: MetricsInstruments
) -> None:
    await ingest(history, usage(1, START))
    await ingest(history, usage(3, START + timedelta(seconds=10)))
    assert value(instruments, "hami_metrics_usage_reports_missing") == 1

    clock.now = START + timedelta(minutes=11)
    await history.sum_up()

    assert value(instruments, "hami_metrics_usage_reports_lost_total") == 1


# --- buckets that are over are summed up, and old days go


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
