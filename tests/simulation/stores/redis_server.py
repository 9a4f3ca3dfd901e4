"""Redis as the node lock uses it: two scripts and GET, with expiry on the loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
import redis.exceptions
from hami_scheduler.adapters.redis import OnFreed, RedisNodeLock
from hamicommon.errors import Unavailable

from tests.simulation.cluster.processes import Process

T = TypeVar("T")


class RedisServer:
    """Keys with their end."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[bytes, float]] = {}

    def lose(self) -> None:
        """A fail-over to a replica that had not heard of the locks yet."""
        self._keys.clear()

    async def get(self, key: str) -> bytes | None:
        """GET."""
        held = self._keys.get(key)
        if held is None or held[1] <= asyncio.get_running_loop().time():
            return None
        return held[0]

    async def acquire(self, key: str, args: list[Any]) -> int:
        """The lock's script."""
        held = await self.get(key)
        if held is not None and orjson.loads(held)["allocation_id"] != args[2]:
            return 0
        self._keys[key] = (args[0], asyncio.get_running_loop().time() + args[1] / 1000)
        return 1

    async def release(self, key: str, args: list[Any]) -> int:
        """The lock's other script."""
        held = await self.get(key)
        if held is None or orjson.loads(held)["token"] != args[0]:
            return 0
        del self._keys[key]
        return 1


class RedisConnection:
    """The part of `redis.asyncio.Redis` that `RedisNodeLock` calls."""

    def __init__(self, server: RedisServer, process: Process) -> None:
        self._server = process.wire(server, "redis")

    async def get(self, key: str) -> bytes | None:
        """GET."""
        return await _translated(self._server.get(key))

    def register_script(self, text: str) -> Callable[..., Awaitable[int]]:
        """Both scripts are known by what they do."""
        work = self._server.acquire if "'SET'" in text else self._server.release

        async def script(*, keys: list[str], args: list[Any]) -> int:
            return await _translated(work(keys[0], args))

        return script


async def _translated(call: Awaitable[T]) -> T:
    try:
        return await call
    except Unavailable as exc:
        raise redis.exceptions.ConnectionError(str(exc)) from exc


class SimLock(RedisNodeLock):
    """The real lock; a release by another replica is found by its polling alone."""

    async def listen(self, on_freed: OnFreed) -> None:
        """Hears nothing."""
        del on_freed
        await asyncio.Event().wait()
