"""Informers and the client: a failing handler or server keeps no other object from being seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.shutdown import end

from tests.waiting import PATIENCE_S


def pod(name: str, version: int) -> Json:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


class Api:
    """Lists three objects, then reports a change and the end of each."""

    def __init__(self) -> None:
        self.reported = asyncio.Event()

    async def get(self, path: str, **query: str) -> Json:
        del path, query
        items = [pod(name, 1) for name in ("first", "poison", "last")]
        return {"items": items, "metadata": {"resourceVersion": "1"}}

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        del path, query
        for kind, version in (("MODIFIED", 2), ("DELETED", 3)):
            for name in ("first", "poison", "last"):
                yield {"type": kind, "object": pod(name, version)}
        self.reported.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("where", ["handler", "trim"])
@pytest.mark.parametrize("error", [ValueError("odd"), InvalidRequest("odd")])
async def test_objects_around_a_poisonous_one_are_handed_on(where: str, error: Exception) -> None:
    api, seen, bulkhead = Api(), [], Bulkhead()

    def check_item(item: Json, place: str) -> Json:
        if where == place and item["metadata"]["name"] == "poison":
            raise error
        return item

    def upsert(new: Json, old: Json | None) -> None:
        check_item(new, "handler")
        seen.append(("new" if old is None else "changed", new["metadata"]["name"]))

    def delete(last: Json) -> None:
        check_item(last, "handler")
        seen.append(("gone", last["metadata"]["name"]))

    informer = Informer(
        cast(Any, api),
        "/api/v1/pods",
        on_upsert=upsert,
        on_delete=delete,
        trim=lambda item: check_item(item, "trim"),
        bulkhead=bulkhead,
    )
    running = asyncio.create_task(informer.run())
    reporting = asyncio.create_task(api.reported.wait())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([running, reporting], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    assert informer.synced.is_set()
    await end([running, reporting])

    kinds = ("new", "changed", "gone")
    assert seen == [(kind, name) for kind in kinds for name in ("first", "last")]
    assert bulkhead.failures == ({"watch": 3} if isinstance(error, ValueError) else {})
    assert informer.store == {}


async def test_handlers_that_are_held_are_shown_what_is_there_when_they_start() -> None:
    api, seen = Quiet(), []
    informer = Informer(
        cast(Any, api),
        "/api/v1/pods",
        on_upsert=lambda new, old: seen.append(
            (new["metadata"]["name"], new["metadata"]["resourceVersion"], old is None)
        ),
        on_delete=lambda last: seen.append((last["metadata"]["name"], "gone", False)),
    )
    informer.hold_handlers()
    running = asyncio.create_task(informer.run())
    api.changes.put_nowait(("MODIFIED", "first", 2))
    api.changes.put_nowait(("DELETED", "poison", 3))
    async with asyncio.timeout(PATIENCE_S):
        while len(informer.store) != 2 or not api.changes.empty():
            await asyncio.sleep(0)
        assert seen == []

        informer.start_handlers()
        assert seen == [("first", "2", True), ("last", "1", True)]

        seen.clear()
        api.changes.put_nowait(("MODIFIED", "last", 4))
        api.changes.put_nowait(("DELETED", "first", 5))
        while len(seen) != 2:
            await asyncio.sleep(0)
    assert seen == [("last", "4", False), ("first", "gone", False)]
    await end([running])


class Quiet(Api):
    """Lists three objects, then reports what a case puts in."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: asyncio.Queue[tuple[str, str, int]] = asyncio.Queue()

    async def watch(self, path: str, **query: str) -> AsyncIterator[Json]:
        del path, query
        while True:
            kind, name, version = await self.changes.get()
            yield {"type": kind, "object": pod(name, version)}


# --- how a watch ends when its connection breaks


EVENT = b'{"type":"ADDED","object":{"kind":"Pod"}}\n'


class Response:
    """A watch's answer: one event, then aiohttp finds the connection lost."""

    status = 200
    connection = None

    def __init__(self) -> None:
        self.content = SimpleNamespace(iter_any=self._chunks)

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield EVENT
        # StreamReader._wait, where the protocol went between two reads.
        raise RuntimeError("Connection closed.")

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""


class Nobody:
    """Credentials and session of a client without a server."""

    server_url = "https://nowhere"

    async def authorize(self, headers: dict[str, str]) -> None:
        del headers

    async def request(self, *_: Any, **__: Any) -> Response:
        return Response()


async def test_a_watch_that_is_lost_between_two_chunks_is_unavailable_and_no_crash() -> None:
    nobody: Any = Nobody()
    events = KubeApi(nobody, nobody).watch("/api/v1/pods", resource_version="1")

    assert (await anext(events))["type"] == "ADDED"
    with pytest.raises(Unavailable, match=r"watch /api/v1/pods: Connection closed\."):
        await anext(events)
