"""How a watch ends when its connection breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hamicommon.errors import Unavailable
from hamicommon.k8s.client import KubeApi

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
    """Credentials and session of a client that asks nobody."""

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
