"""Redis as the node lock uses it: two scripts and GET, with expiry on the loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
import redis.exceptions
from hami_scheduler.adapters.redis.node_lock import OnFreed, RedisNodeLock
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

    async def take(self, keys: list[str], args: list[Any]) -> list[int]:
        """The script that takes locks."""
        taken = []
        for number, key in enumerate(keys):
            value, allocation_id = args[1 + 2 * number : 3 + 2 * number]
            held = await self.get(key)
            free = held is None or orjson.loads(held)["allocation_id"] == allocation_id
            if free:
                self._keys[key] = (value, asyncio.get_running_loop().time() + args[0] / 1000)
            taken.append(int(free))
        return taken

    async def free(self, keys: list[str], args: list[Any]) -> list[int]:
        """The script that frees them."""
        freed = []
        for number, key in enumerate(keys):
            held = await self.get(key)
            mine = held is not None and orjson.loads(held)["token"] == args[1 + 2 * number]
            if mine:
                del self._keys[key]
            freed.append(int(mine))
        return freed


class RedisConnection:
    """The part of `redis.asyncio.Redis` that `LockKeys` calls."""

    def __init__(self, server: RedisServer, process: Process) -> None:
        self._server = process.wire(server, "redis")

    async def get(self, key: str) -> bytes | None:
        """GET."""
        return await _translated(self._server.get(key))

    def register_script(self, text: str) -> Callable[..., Awaitable[list[int]]]:
        """Both scripts are known by what they do."""
        work = self._server.take if "'SET'" in text else self._server.free

        async def script(*, keys: list[str], args: list[Any]) -> list[int]:
            return await _translated(work(keys, args))

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
