"""The queue in front of the decision log: bounded, counted, and shown in one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.placement import decisions as decision_log
from hami_scheduler.placement.decisions import (
    DecisionQueue,
    DecisionTrace,
    reason_counts,
)
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.cluster import PodEvent
from hami_scheduler.ports.ledger import DecisionRow
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import Conflict, InvalidRequest, Unavailable
from hamicommon.explain.record import DecisionRecord, record_of
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.process.bulkhead import Bulkhead

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of
from tests.waiting import PATIENCE_S

N = NodeName("n")
WISH = pod(cards(memory_mib=9000))


class Log:
    """Keeps decisions; away as often as a test asks."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.kept: list[DecisionRow] = []
        self.together: list[int] = []
        self.written = asyncio.Event()

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        if self.away:
            self.away -= 1
            raise Unavailable("Postgres is away")
        self.kept += decisions
        self.together.append(len(decisions))
        self.written.set()

    async def tidy(self, *, keep_days: int) -> int:
        del keep_days
        return 0


async def at_once() -> None:
    """Wait for nothing: no request is in progress."""


class Events:
    def __init__(self) -> None:
        self.emitted: list[PodEvent] = []

    def emit(self, event: PodEvent) -> None:
        self.emitted.append(event)


def refused_trace(queue: DecisionQueue, view: ClusterView, uid: str = "u") -> DecisionTrace:
    decision = decide(WISH, view, candidates=[N])
    assert decision.refusal is not None
    trace = DecisionTrace(
        pod={"metadata": {"uid": uid, "name": "p"}},
        started=time.perf_counter(),
        request=WISH,
        candidates=1,
    )
    trace.frozen = queue.frozen(view, decision.scores)
    trace.refuse(decision.refusal.reasons, decision.refusal.shortfalls)
    return trace


def a_view() -> ClusterView:
    return view_of({"n": [card("g")]})


@contextlib.asynccontextmanager
async def writing(queue: DecisionQueue) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def write_queue(queue: DecisionQueue, log: Log) -> None:
    async with writing(queue), asyncio.timeout(PATIENCE_S):
        await log.written.wait()


def read_again(kept: DecisionRow) -> DecisionRecord:
    """Read the row as `/v1/explain` does."""
    assert kept.inventory is not None
    row = {
        "shortfalls": kept.detail,
        "request": kept.request,
        "policy": kept.policy,
        **dict.fromkeys(("at", "detail_at", "last_at"), kept.decided_at),
        "repeat_count": 1,
        **{
            name: getattr(kept, name)
            for name in (
                *("pod_uid", "namespace", "pod_name", "outcome", "node", "message"),
                *("summary", "candidates", "view_version", "trace_id"),
            )
        },
    }
    return record_of(
        row,
        inventory=kept.inventory.content,
        counters=None if kept.counters is None else kept.counters.content,
        new_view=ClusterView,
    )


async def test_decisions_are_written_when_nobody_waits_for_one_any_more() -> None:
    log, view, calls = Log(), a_view(), BackgroundQueue()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=calls.until_idle)
    async with writing(queue):
        with calls.request():
            for number in range(5):
                queue.add(refused_trace(queue, view, uid=f"u{number}"))
                await asyncio.sleep(0)  # the writer has its turn, and does not take it
            assert not log.kept
        async with asyncio.timeout(PATIENCE_S):
            await log.written.wait()

    assert log.together == [5]


async def test_a_burst_without_end_holds_decisions_for_some_seconds_only() -> None:
    log, view, calls = Log(), a_view(), BackgroundQueue(max_delay_s=0.0)
    queue = DecisionQueue(log, Announcer(Events()), until_idle=calls.until_idle)
    async with writing(queue), asyncio.timeout(PATIENCE_S):
        with calls.request():
            queue.add(refused_trace(queue, view))
            await log.written.wait()

    assert log.together == [1]


async def test_a_burst_of_many_batches_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "BATCH", 2)
    waits = 0

    async def until_idle() -> None:
        nonlocal waits
        waits += 1

    log, view = Log(), a_view()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=until_idle)
    for number in range(5):
        queue.add(refused_trace(queue, view, uid=f"u{number}"))
    async with writing(queue), asyncio.timeout(PATIENCE_S):
        while len(log.kept) < 5:
            await asyncio.sleep(0)

    assert waits == 1


async def test_what_waits_when_the_service_stops_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision_log, "BATCH", 2)
    log, view, calls = Log(), a_view(), BackgroundQueue()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=calls.until_idle)
    async with writing(queue):
        with calls.request():
            for number in range(5):
                queue.add(refused_trace(queue, view, uid=f"u{number}"))
            await asyncio.sleep(0)  # the writer has the first in its hands

    assert [row.pod_uid for row in log.kept] == [f"u{number}" for number in range(5)]


async def test_a_refusal_is_written_with_its_cards_and_shown_on_the_pod() -> None:
    log, events, view = Log(), Events(), a_view()
    queue = DecisionQueue(log, Announcer(events), until_idle=at_once)
    queue.add(refused_trace(queue, view))

    await write_queue(queue, log)

    [kept] = log.kept
    assert kept.reason_counts == {"CardInsufficientMemory": 1}
    assert kept.counters is not None
    [event] = events.emitted
    assert event.message == kept.summary
    assert event.message == (
        "no card of 1 on 1 node has 9000 MiB: the largest has 8000 MiB; ask for less"
    )
    record = read_again(kept)
    assert record.reasons == {N: "1/1 CardInsufficientMemory"}
    assert record.request is not None
    assert record.request.containers == WISH.containers
    assert record.view is not None
    assert record.view.cards(N) == view.cards(N)


async def test_a_placement_is_written_with_its_cards_in_its_own_row() -> None:
    log, view = Log(), a_view()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=at_once)
    trace = refused_trace(queue, view)
    trace.outcome, trace.reasons = "placed", {}
    queue.add(trace)

    await write_queue(queue, log)

    [kept] = log.kept
    assert kept.counters is None
    record = read_again(kept)
    assert record.view is not None
    assert record.view.cards(N) == view.cards(N)


async def test_while_the_ledger_is_away_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.01)
    log = Log(away=3)
    queue = DecisionQueue(log, Announcer(Events()), until_idle=at_once)
    for number in range(5):
        queue.add(refused_trace(queue, a_view(), uid=f"u{number}"))

    await write_queue(queue, log)

    assert [kept.pod_uid for kept in log.kept] == [f"u{number}" for number in range(5)]
    assert queue.dropped == 0


async def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "QUEUE_SIZE", 2)
    queue, view = DecisionQueue(Log(), Announcer(Events()), until_idle=at_once), a_view()

    for _ in range(5):
        queue.add(refused_trace(queue, view))

    assert (queue.waiting, queue.dropped) == (2, 3)


async def test_too_many_different_clusters_are_not_kept_in_memory_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision_log, "MAX_MOMENTS", 2)
    monkeypatch.setattr(decision_log, "NODES_OF_A_PLACEMENT", 0)
    log = Log()
    queue, view = DecisionQueue(log, Announcer(Events()), until_idle=at_once), a_view()
    for version in range(2, 6):
        queue.add(refused_trace(queue, view, uid=f"u{version}"))
        view.apply(GpuUuid("g"), slots=1, memory_mib=version, core_percent=1, version=version)

    await write_queue(queue, log)

    assert queue.dropped_moments == 2
    assert [kept.counters is None for kept in log.kept] == [False, False, True, True]
    # Writing has made room again.
    view.apply(GpuUuid("g"), slots=1, memory_mib=2, core_percent=1, version=9)
    queue.add(refused_trace(queue, view))
    assert queue.dropped_moments == 2


def test_refusals_of_one_moment_share_the_cards() -> None:
    queue, view = DecisionQueue(Log(), Announcer(Events()), until_idle=at_once), a_view()

    one, other = refused_trace(queue, view), refused_trace(queue, view)

    assert one.frozen is other.frozen


def test_reasons_are_counted_by_node() -> None:
    reasons = {N: "2/4 CardNotHealth, 2/4 CardCordoned", NodeName("m"): "4/4 CardNotHealth"}

    assert reason_counts(reasons) == {"CardNotHealth": 2, "CardCordoned": 1}


@pytest.mark.parametrize(
    "error",
    [ValueError("a NUL in a name"), InvalidRequest("too long"), Conflict("again")],
    ids=lambda error: type(error).__name__,
)
async def test_decisions_around_one_that_the_ledger_refuses_are_written(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_log, "RETRY_S", 0.001)

    class Refusing(Log):
        async def record(self, decisions: Sequence[DecisionRow]) -> None:
            if any(row.pod_uid == "poison" for row in decisions):
                raise error
            self.kept += decisions
            if self.kept[-1].pod_uid == "last":
                self.written.set()

    log, view = Refusing(), a_view()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=at_once)
    for uid in ("first", "poison", "last"):
        queue.add(refused_trace(queue, view, uid))

    await write_queue(queue, log)

    assert [row.pod_uid for row in log.kept] == ["first", "last"]


async def test_decisions_around_one_that_can_not_be_encoded_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, view, bulkhead = Log(), a_view(), Bulkhead()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=at_once, bulkhead=bulkhead)
    encode = decision_log.decision_of

    def decision_of(trace: DecisionTrace, *rest: Any) -> DecisionRow:
        if trace.uid == "poison":
            raise RecursionError
        return encode(trace, *rest)

    monkeypatch.setattr(decision_log, "decision_of", decision_of)
    for uid in ("first", "poison", "last"):
        queue.add(refused_trace(queue, view, uid))

    await write_queue(queue, log)

    assert [row.pod_uid for row in log.kept] == ["first", "last"]
    assert bulkhead.failures == {"decisions": 1}


async def test_a_batch_that_is_encoded_when_the_service_stops_is_written_by_one_thread_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, go_on = decision_log.decision_of, threading.Event()
    encoding = threading.Lock()
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def decision_of(*arguments: Any) -> DecisionRow:
        assert encoding.acquire(blocking=False), "two threads use the encoder"
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE_S)
        encoding.release()
        return encode(*arguments)

    monkeypatch.setattr(decision_log, "decision_of", decision_of)
    monkeypatch.setattr(decision_log, "BATCH", 2)
    log, view = Log(), a_view()
    queue = DecisionQueue(log, Announcer(Events()), until_idle=at_once)
    for number in range(3):
        queue.add(refused_trace(queue, view, uid=f"u{number}"))

    task = asyncio.create_task(queue.run())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)  # the writer is cancelled while the thread still encodes
    go_on.set()
    await asyncio.gather(task, return_exceptions=True)

    assert [row.pod_uid for row in log.kept] == ["u0", "u1", "u2"]
