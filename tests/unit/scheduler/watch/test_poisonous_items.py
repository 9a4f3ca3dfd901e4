"""A pod, node or namespace that causes an unexpected error does not block the others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hami_scheduler import work_queue
from hami_scheduler.ledger.quota import QuotaLimits
from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.watch.annotated_nodes import AnnotatedNodes
from hami_scheduler.watch.nodes import NodeSync
from hami_scheduler.watch.pods import PodWatch
from hami_scheduler.watch.quotas import QuotaSync
from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.k8s.annotations import DEVICE_CORDON
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.shutdown import end

from tests.unit.scheduler.states import state_of
from tests.waiting import PATIENCE_S

POISON = [
    pytest.param(ValueError("nobody thought of this"), id="unexpected"),
    pytest.param(Conflict("lost a race"), id="conflict"),
    pytest.param(InvalidRequest("not to be written"), id="invalid"),
]


async def _wait_for_nothing() -> None:
    pass


class Store:
    """Notes whose turn it was, and fails on `poison`."""

    def __init__(self, error: Exception, last: str) -> None:
        self.error = error
        self.done: list[str] = []
        self.reached = asyncio.Event()
        self._last = last

    async def turn(self, name: str, *_: object) -> None:
        if name == "poison":
            raise self.error
        self.done.append(name)
        if name == self._last:
            self.reached.set()

    live_of = set_cordoned = mark_gone = set_limits = turn

    async def set_node(self, *_: object, **_values: object) -> None:
        """Do nothing."""

    async def list_uses(self) -> list[Any]:
        return []


async def _until_reached(store: Store, loop: Coroutine[Any, Any, None]) -> None:
    running = asyncio.create_task(loop)
    reaching = asyncio.create_task(store.reached.wait())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([running, reaching], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), "the loop ended"
    await end([running, reaching])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "MIN_BACKOFF_S", 0.001)


@pytest.mark.parametrize("error", POISON)
async def test_pods_around_a_poisonous_one_are_looked_at(error: Exception) -> None:
    store = Store(error, "last")
    watch = PodWatch(
        store=cast(Any, store),
        transitions=cast(Any, None),
        state=state_of(),
        waiting=WaitingPods(),
        request_of=cast(Any, None),
        scheduler_name="hami-scheduler",
    )
    for uid in ("first", "poison", "last"):
        pod = {"metadata": {"uid": uid, "name": uid}, "spec": {"schedulerName": "hami-scheduler"}}
        watch.on_upsert(pod, None)
        watch.on_delete(pod)

    await _until_reached(store, watch.queue.run())

    assert store.done == ["first", "last"]


def node_sync(store: Store) -> NodeSync:
    return NodeSync(
        store=cast(Any, store),
        view=cast(Any, _View()),
        group_labels=(),
        unmatched=cast(Any, SimpleNamespace(forget=lambda _node: None)),
        events=cast(Any, None),
        on_gone=lambda _node: None,
        on_freed=lambda: None,
    )


def make_cordoned_node(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": {DEVICE_CORDON: "GPU-a"}}}


@pytest.mark.parametrize("wish", ["cordon", "gone"])
@pytest.mark.parametrize("error", POISON)
async def test_nodes_around_a_poisonous_one_are_written(error: Exception, wish: str) -> None:
    store = Store(error, "last")
    sync = node_sync(store)
    for node in ("first", "poison", "last"):
        if wish == "cordon":
            sync.on_upsert(make_cordoned_node(node))
        else:
            sync.on_delete(make_cordoned_node(node))

    await _until_reached(store, sync.queue.run())

    assert store.done == ["first", "last"]


async def test_a_cordon_that_failed_is_written_later() -> None:
    store = Store(Conflict("lost a race"), "last")
    sync = node_sync(store)
    sync.on_upsert(make_cordoned_node("poison"))
    sync.on_upsert(make_cordoned_node("last"))
    await _until_reached(store, sync.queue.run())
    assert "poison" in sync.queue

    written = asyncio.Event()

    async def set_cordoned(node: str, uuids: frozenset[str]) -> bool:
        del uuids
        assert node == "poison"
        written.set()
        return False

    store.set_cordoned = set_cordoned
    running = asyncio.create_task(sync.queue.run())
    async with asyncio.timeout(PATIENCE_S):
        await written.wait()
    await end([running])


class _View:
    loaded = True
    cluster = SimpleNamespace(cards=lambda _node: ())

    async def refresh_nodes(self, node: str) -> None:
        del node


@pytest.mark.parametrize("error", POISON)
async def test_namespaces_around_a_poisonous_one_get_their_limits(error: Exception) -> None:
    store = Store(error, "z-last")
    sync = QuotaSync(
        store=cast(Any, store),
        limits_of=lambda _quota: QuotaLimits(limits={"nvidia.com/gpumem": 1}),
        synced=lambda: True,
        on_written=_wait_for_nothing,
    )
    for namespace in ("first", "poison", "z-last"):
        sync.on_upsert({"metadata": {"namespace": namespace, "name": "q"}}, None)

    await _until_reached(store, sync.queue.run())

    assert store.done == ["first", "z-last"]


@pytest.mark.parametrize("error", POISON)
async def test_nodes_without_agent_around_a_poisonous_one_are_looked_at(
    error: Exception,
) -> None:
    store = Store(error, "last")

    async def look(node: Mapping[str, Any]) -> None:
        await store.turn(node["metadata"]["name"])

    known = AnnotatedNodes(
        **dict.fromkeys(("store", "view", "nodes", "refused", "malformed", "on_written", "locks")),
        vendors=cast(Any, ()),
        bulkhead=Bulkhead(),
    )
    cast(Any, known)._look = look
    for node in ("first", "poison", "last"):
        known.on_upsert({"metadata": {"name": node}}, None)

    await _until_reached(store, known.queue.run())

    assert store.done == ["first", "last"]
