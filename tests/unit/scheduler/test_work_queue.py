"""Failed items are retried ever more rarely, and immediately when it is another object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hami_scheduler import work_queue
from hami_scheduler.ledger.quota import QuotaLimits
from hami_scheduler.watch.annotated_nodes import AnnotatedNodes
from hami_scheduler.watch.nodes import NodeSync
from hami_scheduler.watch.pods import PodWatch
from hami_scheduler.watch.quotas import QuotaSync
from hami_scheduler.work_queue import MAX_BACKOFF_S, MAX_UNAVAILABLE_BACKOFF_S, WorkQueue
from hamicommon.errors import Conflict, Unavailable
from hamicommon.k8s.annotations import DEVICE_CORDON
from hamicommon.process.bulkhead import Bulkhead
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scheduler.states import state_of

HOUR_S = 3600


async def _wait_for_nothing() -> None:
    pass


class Time:
    """The test moves it on."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Refusing:
    """A ledger that refuses everything; counts how often it was asked."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.attempts = 0

    async def refuse(self, *_: object) -> None:
        self.attempts += 1
        raise self._error

    live_of = set_cordoned = mark_gone = set_limits = record_annotated = refuse

    async def list_uses(self) -> list[Any]:
        return []


class _Waiting:
    def remove(self, uid: str) -> None:
        del uid


class _View:
    loaded = True
    cluster = SimpleNamespace(cards=lambda _node: ())

    async def refresh_nodes(self, node: str) -> None:
        del node


Worker = tuple[Callable[[], Any], Callable[[], None]]
"""(one round, note a new version of the item)."""


def pods(ledger: Refusing, clock: Time) -> Worker:
    watch = PodWatch(
        store=cast(Any, ledger),
        transitions=cast(Any, None),
        state=state_of(),
        waiting=cast(Any, _Waiting()),
        request_of=cast(Any, None),
        scheduler_name="hami-scheduler",
        clock=clock,
    )
    pod = {"metadata": {"uid": "u", "name": "p"}}

    def change() -> None:
        watch.by_uid[cast(Any, "u")] = pod
        watch.on_delete(pod)

    return watch.queue.run_due, change


def node(*cordoned: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-1", "annotations": {DEVICE_CORDON: ",".join(cordoned)}}}


def node_sync(ledger: Refusing, clock: Time) -> NodeSync:
    return NodeSync(
        store=cast(Any, ledger),
        view=cast(Any, _View()),
        group_labels=(),
        unmatched=cast(Any, SimpleNamespace(forget=lambda _node: None)),
        events=cast(Any, None),
        on_gone=lambda _node: None,
        on_freed=lambda: None,
        clock=clock,
    )


def nodes(ledger: Refusing, clock: Time) -> Worker:
    sync = node_sync(ledger, clock)
    return sync.queue.run_due, lambda: sync.on_delete(node())


def cordons(ledger: Refusing, clock: Time) -> Worker:
    sync = node_sync(ledger, clock)
    cards = map(str, range(10))
    return sync.queue.run_due, lambda: sync.on_upsert(node(f"GPU-{next(cards)}"))


def quotas(ledger: Refusing, clock: Time) -> Worker:
    sync = QuotaSync(
        store=cast(Any, ledger),
        limits_of=lambda quota: QuotaLimits(limits={"nvidia.com/gpumem": quota["n"]}),
        synced=lambda: True,
        on_written=_wait_for_nothing,
        clock=clock,
    )
    versions = iter(range(1, 10))

    def change() -> None:
        sync.on_upsert({"metadata": {"namespace": "a", "name": "q"}, "n": next(versions)}, None)

    return sync.queue.run_due, change


def make_worker(ledger: Refusing, clock: Time) -> Worker:
    known = AnnotatedNodes(
        **dict.fromkeys(("store", "view", "nodes", "refused", "malformed", "on_written", "locks")),
        vendors=cast(Any, ()),
        bulkhead=Bulkhead(),
        clock=clock,
    )
    cast(Any, known)._look = ledger.refuse
    return known.queue.run_due, lambda: known.on_upsert(node(), None)


async def refused_for_an_hour(
    make: Callable[[Refusing, Time], Worker], error: Exception
) -> tuple[Refusing, Time, Worker]:
    """Run a worker for an hour with an item that is refused every time."""
    ledger, clock = Refusing(error), Time()
    once, change = make(ledger, clock)
    change()
    for _ in range(HOUR_S):
        await once()
        clock.now_s += 1
    return ledger, clock, (once, change)


WORKERS = pytest.mark.parametrize("make", [pods, nodes, cordons, quotas, make_worker])


@WORKERS
async def test_a_refused_item_costs_one_attempt_in_five_minutes(
    make: Callable[[Refusing, Time], Worker],
) -> None:
    ledger, _, _ = await refused_for_an_hour(make, Conflict("never"))

    # 1, 2, 4 .. 256 s are nine waits, 511 s; then one attempt in each 300 s.
    assert ledger.attempts == 1 + 9 + (HOUR_S - 512) // 300


@WORKERS
async def test_a_new_version_of_a_refused_item_is_due_at_once(
    make: Callable[[Refusing, Time], Worker],
) -> None:
    ledger, _, (once, change) = await refused_for_an_hour(make, Conflict("never"))
    before = ledger.attempts
    await once()
    assert ledger.attempts == before

    change()
    await once()

    assert ledger.attempts == before + 1


@WORKERS
async def test_an_item_follows_soon_after_a_ledger_that_was_away_for_long(
    make: Callable[[Refusing, Time], Worker],
) -> None:
    ledger, clock, (once, _) = await refused_for_an_hour(make, Unavailable("Postgres is away"))
    before = ledger.attempts

    clock.now_s += MAX_UNAVAILABLE_BACKOFF_S
    await once()

    assert ledger.attempts == before + 1


@given(st.lists(st.booleans(), min_size=1, max_size=40))
async def test_no_wait_is_longer_than_its_maximum(unavailable: list[bool]) -> None:
    clock = Time()
    errors = iter(unavailable)

    async def work(_key: str) -> None:
        raise Unavailable("Postgres is away") if next(errors) else Conflict("never")

    queue = WorkQueue("test", work, clock=clock)
    queue.add("item")
    for is_unavailable in unavailable:
        assert queue.due() == ["item"]
        assert await queue.run_due() is not is_unavailable
        assert not queue.due()
        clock.now_s += MAX_UNAVAILABLE_BACKOFF_S if is_unavailable else MAX_BACKOFF_S


async def test_a_worker_wakes_for_the_first_key_that_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "MIN_BACKOFF_S", 0.001)
    done: list[str] = []
    turns = asyncio.Semaphore(0)

    async def work(key: str) -> None:
        done.append(key)
        turns.release()
        if done.count(key) < 3 and key == "fails":
            raise Conflict("later")

    queue = WorkQueue("test", work)
    working = asyncio.create_task(queue.run())
    queue.add("fails")
    for _ in range(3):
        await turns.acquire()
    queue.add("other")
    await turns.acquire()
    working.cancel()

    assert done == ["fails", "fails", "fails", "other"]


async def test_a_key_that_fails_waits_unless_it_is_added_again() -> None:
    clock, ledger = Time(), Refusing(Conflict("never"))
    queue = WorkQueue("test", ledger.refuse, clock=clock)
    queue.revisit("item")
    await queue.run_due()

    queue.revisit("item")
    await queue.run_due()
    assert ledger.attempts == 1

    queue.add("item")
    await queue.run_due()
    assert ledger.attempts == 2

    queue.discard("item")
    clock.now_s += MAX_BACKOFF_S
    await queue.run_due()
    assert ledger.attempts == 2
    assert "item" not in queue


async def test_keys_behind_an_unavailable_backend_wait_for_the_next_round() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)
        if key == "a" and done.count("a") == 1:
            raise Unavailable("Postgres is away")

    queue = WorkQueue("test", work, clock=Time())
    queue.add("a")
    queue.add("b")

    assert not await queue.run_due()
    assert done == ["a"]
    assert await queue.run_due()
    assert done == ["a", "b"]
