"""Pod events are written in the background, each whatever became of the others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from hami_scheduler.adapters.kubernetes import KubernetesPodEvents
from hami_scheduler.background_queue import WORKERS, BackgroundQueue
from hami_scheduler.ports.cluster import PodEvent
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.shutdown import end

from tests.waiting import PATIENCE_S


class Api:
    """Has an odd event already for pods named `odd`, as another writer may have left it."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.done = asyncio.Event()

    async def create(self, path: str, body: dict[str, Any]) -> None:
        del path
        name = body["involvedObject"]["name"]
        if name == "odd":
            raise Conflict("it exists")
        self.created.append(name)
        self.done.set()

    async def get(self, path: str) -> dict[str, Any]:
        del path
        return {"count": "many"}


def event(name: str) -> PodEvent:
    return PodEvent(
        pod=PodRef("team", name, PodUid(name)), reason="FilteringFailed", message="no card"
    )


async def test_events_after_one_that_cannot_be_written_are_written() -> None:
    api, bulkhead = Api(), Bulkhead()
    background = BackgroundQueue(bulkhead=bulkhead)
    events = KubernetesPodEvents(cast(Any, api), background, component="hami-scheduler")
    # One for each worker, and one that needs a worker still to be there.
    for _ in range(WORKERS):
        events.emit(event("odd"))
    events.emit(event("next"))

    running = asyncio.create_task(background.run())
    written = asyncio.create_task(api.done.wait())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([running, written], return_when=asyncio.FIRST_COMPLETED)

    assert not running.done(), "the workers ended"
    await end([running, written])
    assert api.created == ["next"]
    assert bulkhead.failures == {"background": WORKERS}
    assert events.dropped == WORKERS


async def test_an_event_that_is_shown_once_is_not_counted_up_by_a_writer_that_comes_later() -> None:
    class Shown(Api):
        """Has the event already, with the message `no card`."""

        async def get(self, path: str) -> dict[str, Any]:
            return {"count": 1, "message": "no card"}

        async def patch(self, path: str, change: dict[str, Any]) -> None:
            self.created.append(change["message"])
            self.done.set()

    api = Shown()
    background = BackgroundQueue()
    events = KubernetesPodEvents(cast(Any, api), background, component="hami-scheduler")
    once = replace(event("odd"), series="card", once=True)
    for message in ("no card", "no card", "another"):
        events.emit(replace(once, message=message))

    running = asyncio.create_task(background.run())
    async with asyncio.timeout(PATIENCE_S):
        await api.done.wait()
    await end([running])

    assert api.created == ["another"]
