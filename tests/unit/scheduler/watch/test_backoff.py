"""What fails is tried again ever more rarely, and at once when it is another object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hami_scheduler.ledger.quota import QuotaLimits
from hami_scheduler.watch.annotated_nodes import AnnotatedNodes
from hami_scheduler.watch.backoff import AWAY_MOST_S, MOST_S, ItemBackoff
from hami_scheduler.watch.nodes import NodeSync
from hami_scheduler.watch.pods import PodWatch
from hami_scheduler.watch.quotas import QuotaSync
from hamicommon.errors import Conflict, Unavailable
from hamicommon.process.bulkhead import Bulkhead
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scheduler.states import state_of

HOUR_S = 3600


async def _written() -> None:
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

    async def limited(self) -> frozenset[str]:
        return frozenset()


class _Waiting:
    def remove(self, uid: str) -> None:
        del uid


class _View:
    loaded = True
    cluster = SimpleNamespace(cards=lambda _node: ())


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
        waits=ItemBackoff(clock=clock),
    )
    pod = {"metadata": {"uid": "u", "name": "p"}}

    def change() -> None:
        watch.by_uid[cast(Any, "u")] = pod
        watch.on_delete(pod)

    return watch.once, change


def node_sync(ledger: Refusing, clock: Time) -> NodeSync:
    return NodeSync(
        store=cast(Any, ledger),
        view=cast(Any, _View()),
        forget=lambda _node: None,
        on_freed=lambda: None,
        unmatched=cast(Any, SimpleNamespace(forget=lambda _node: None)),
        waits=ItemBackoff(clock=clock),
    )


def nodes(ledger: Refusing, clock: Time) -> Worker:
    sync = node_sync(ledger, clock)
    return sync.once, lambda: sync.gone("node-1")


def cordons(ledger: Refusing, clock: Time) -> Worker:
    sync = node_sync(ledger, clock)
    return sync.once, lambda: sync.cordon("node-1", frozenset({"GPU-a"}))


def quotas(ledger: Refusing, clock: Time) -> Worker:
    sync = QuotaSync(
        store=cast(Any, ledger),
        limits_of=lambda quota: QuotaLimits(limits={"nvidia.com/gpumem": quota["n"]}),
        synced=lambda: True,
        on_written=_written,
        waits=ItemBackoff(clock=clock),
    )
    versions = iter(range(1, 10))

    def change() -> None:
        sync.on_upsert({"metadata": {"namespace": "a", "name": "q"}, "n": next(versions)}, None)

    return sync.once, change


def annotated(ledger: Refusing, clock: Time) -> Worker:
    known = AnnotatedNodes(
        inventory=cast(Any, SimpleNamespace(look=ledger.refuse, asked=set())),
        locks=cast(Any, None),
        vendors=cast(Any, ()),
        bulkhead=Bulkhead(),
    )
    known._waits = ItemBackoff(clock=clock)
    return known.once, lambda: known.on_upsert({"metadata": {"name": "node-1"}}, None)


async def refused_for_an_hour(
    make: Callable[[Refusing, Time], Worker], error: Exception
) -> tuple[Refusing, Time, Worker]:
    """Its item was due once, and every second since."""
    ledger, clock = Refusing(error), Time()
    once, change = make(ledger, clock)
    change()
    for _ in range(HOUR_S):
        await once()
        clock.now_s += 1
    return ledger, clock, (once, change)


WORKERS = pytest.mark.parametrize("make", [pods, nodes, cordons, quotas, annotated])


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

    clock.now_s += AWAY_MOST_S
    await once()

    assert ledger.attempts == before + 1


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_no_wait_is_longer_than_its_maximum(aways: list[bool]) -> None:
    clock = Time()
    waits = ItemBackoff(clock=clock)
    for away in aways:
        waits.failed("item", away=away)
        assert not waits.due("item")
    clock.now_s += AWAY_MOST_S if aways[-1] else MOST_S
    assert waits.due("item")


async def test_a_worker_wakes_for_the_first_item_that_is_due() -> None:
    clock, woken = Time(), asyncio.Event()
    waits = ItemBackoff(clock=clock)
    waits.failed("later")
    clock.now_s += 0.9999
    waits.failed("now")
    waits.reset("now")

    await waits.next_turn(woken, ["later"])
    await waits.next_turn(woken, ["later", "now"])
    woken.set()
    await waits.next_turn(woken, [])

    assert not woken.is_set()
