"""An object that a handler fails on keeps no other object from being seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hamicommon.errors import InvalidRequest
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

    def judged(item: Json, place: str) -> Json:
        if where == place and item["metadata"]["name"] == "poison":
            raise error
        return item

    def upsert(new: Json, old: Json | None) -> None:
        judged(new, "handler")
        seen.append(("new" if old is None else "changed", new["metadata"]["name"]))

    def delete(last: Json) -> None:
        judged(last, "handler")
        seen.append(("gone", last["metadata"]["name"]))

    informer = Informer(
        cast(Any, api),
        "/api/v1/pods",
        on_upsert=upsert,
        on_delete=delete,
        trim=lambda item: judged(item, "trim"),
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
