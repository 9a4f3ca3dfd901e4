"""Redis as the node lock uses it: SET NX PX, a look and a script, on the loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

import redis.exceptions
from hamicommon.errors import Unavailable

from tests.simulation.cluster.processes import Process

T = TypeVar("T")


class RedisServer:
    """Keys with their end."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[bytes, float]] = {}

    def lose(self) -> None:
        """Lose all locks, as in a fail-over to a replica that had not received them."""
        self._keys.clear()

    async def look(self, key: str) -> list[Any]:
        """TYPE, PTTL and GET in one transaction."""
        now = asyncio.get_running_loop().time()
        value, end = self._keys.get(key, (b"", now))
        if end <= now:
            return [b"none", -2, None]
        return [b"string", int((end - now) * 1000), value]

    async def set_nx(self, key: str, value: bytes, px: int) -> bool:
        """SET NX PX."""
        if (await self.look(key))[2] is not None:
            return False
        self._keys[key] = (value, asyncio.get_running_loop().time() + px / 1000)
        return True

    async def delete_if(self, key: str, value: bytes) -> int:
        """The script that compares and deletes."""
        if (await self.look(key))[2] != value:
            return 0
        del self._keys[key]
        return 1


class RedisConnection:
    """The part of `redis.asyncio.Redis` that the lock calls."""

    def __init__(self, server: RedisServer, process: Process) -> None:
        self._server = process.wire(server, "redis")

    async def set(self, key: str, value: bytes, *, nx: bool, px: int) -> bool:
        """SET NX PX."""
        assert nx
        return await _translate(self._server.set_nx(key, value, px))

    def pipeline(self, *, transaction: bool) -> _Look:
        """The one transaction that the lock has."""
        assert transaction
        return _Look(self._server)

    def register_script(self, text: str) -> Callable[..., Awaitable[int]]:
        """The one script that the lock has."""
        assert "'DEL'" in text

        async def script(*, keys: list[str], args: list[bytes]) -> int:
            return await _translate(self._server.delete_if(*keys, *args))

        return script


class _Look:
    """TYPE, PTTL and GET of one key."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._key = ""

    async def __aenter__(self) -> _Look:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None: ...

    def type(self, key: str) -> None:
        """TYPE."""
        self._key = key

    pttl = get = type

    async def execute(self, *, raise_on_error: bool) -> list[Any]:
        """The three answers."""
        del raise_on_error
        return await _translate(self._server.look(self._key))


async def _translate(call: Awaitable[T]) -> T:
    try:
        return await call
    except Unavailable as exc:
        raise redis.exceptions.ConnectionError(str(exc)) from exc
