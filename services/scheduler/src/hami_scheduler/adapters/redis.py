"""Node locks in Redis: `SET hami:nodelock:<node> <holder> NX PX`, freed by compare-and-delete.

The value names pod, allocation and fencing token. Waiters of this process take turns per node in
order of arrival, so only the first of them polls; a release by this process wakes it. While Redis
is unavailable no lock is taken or freed: a held lock expires.

A Redis that hangs may set a lock after its caller has given up. The next pod of this process
therefore takes over a lock whose holder has given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import orjson
import redis.asyncio
import redis.exceptions
from cachetools import TTLCache
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.errors import Conflict, Unavailable
from hamicommon.ledger.model import LockHolder
from hamicommon.settings import RedisSettings
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

logger = logging.getLogger(__name__)

_KEY = "hami:nodelock:{node}"
# A lock that expires, or that another replica frees, is noticed within this.
POLL_INTERVAL_S = 0.1
MAX_ABANDONED = 10_000
# Deletes KEYS[1] if its value is ARGV[1], or if it is no string, which no lock of ours is.
_DELETE = """
if redis.call('TYPE', KEYS[1]).ok ~= 'string' or redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
# Deletes KEYS[1] if it is a lock under the token ARGV[1].
_RELEASE = """
local value = redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1])
local is_json, held = pcall(cjson.decode, value or '')
if is_json and type(held) == 'table' and held.token == tonumber(ARGV[1]) then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(slots=True)
class _Turns:
    """Callers in this process that wait for one node."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    freed: asyncio.Event = field(default_factory=asyncio.Event)
    waiters: int = 0
    arrivals: int = 0
    failure: tuple[int, str] | None = None
    """Number of callers when Redis was found unavailable, and the error."""


class RedisNodeLock:
    """Lock of nodes."""

    def __init__(self, client: redis.asyncio.Redis, *, lock_s: float) -> None:
        """Use `client`; a lock expires after `lock_s`."""
        self._client = client
        self._lock_ms = int(lock_s * 1000)
        self._delete = client.register_script(_DELETE)
        self._release = client.register_script(_RELEASE)
        self._turns: dict[NodeName, _Turns] = {}
        self._abandoned: TTLCache[int, None] = TTLCache(MAX_ABANDONED, lock_s)
        """Tokens of callers that gave up but may hold the lock."""

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """Wait for the lock; a later token of the same allocation takes it over."""
        with self._waiting(node) as turns:
            try:
                async with asyncio.timeout(wait_s):
                    await self._take_in_turn(node, holder, turns)
                return
            except TimeoutError:
                pass
            except Unavailable:
                self._abandoned[holder.token] = None
                raise
        # The answer to the last attempt may have been lost; no pod must wait for that lock.
        await self.release(node, holder.token)
        raise Conflict(
            f"node {node} was being bound to another pod for {wait_s:g} s: node lock contention"
        )

    @contextmanager
    def _waiting(self, node: NodeName) -> Iterator[_Turns]:
        turns = self._turns.setdefault(node, _Turns())
        turns.waiters += 1
        try:
            yield turns
        finally:
            turns.waiters -= 1
            if not turns.waiters:
                del self._turns[node]

    async def _take_in_turn(self, node: NodeName, holder: LockHolder, turns: _Turns) -> None:
        turns.arrivals += 1
        arrival = turns.arrivals
        async with turns.lock:
            if turns.failure is not None and arrival <= turns.failure[0]:
                # Otherwise each would wait for its own time-out, one after the other.
                raise Unavailable(turns.failure[1])
            try:
                await self._take(node, holder, turns.freed)
            except Unavailable as exc:
                turns.failure = turns.arrivals, str(exc)
                raise

    async def _take(self, node: NodeName, holder: LockHolder, freed: asyncio.Event) -> None:
        key, value = _KEY.format(node=node), orjson.dumps(holder)
        is_first_try = True
        while True:
            freed.clear()
            with _translate_errors():
                if await self._client.set(key, value, nx=True, px=self._lock_ms):
                    self._abandoned.pop(holder.token, None)
                    return
            if is_first_try:
                is_first_try = False
                current = await self._read(node)
                if (
                    current is None
                    or holder.may_replace(current[1])
                    or current[1].token in self._abandoned
                ):
                    if current is not None:
                        await self._delete_if(node, current[0])
                    continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await freed.wait()

    async def release(self, node: NodeName, token: int) -> bool:
        """Free the lock if `token` holds it; return whether it did. Raises: Unavailable."""
        self._abandoned[token] = None
        with _translate_errors():
            is_freed = bool(await self._release(keys=[_KEY.format(node=node)], args=[token]))
        if is_freed and (turns := self._turns.get(node)):
            turns.freed.set()
        return is_freed

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Return the holder of the lock. Raises: Unavailable."""
        current = await self._read(node)
        return None if current is None else current[1]

    async def _read(self, node: NodeName) -> tuple[bytes, LockHolder] | None:
        """Return the lock's value, after deleting a key that is no lock of ours."""
        key = _KEY.format(node=node)
        with _translate_errors():
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.type(key)
                pipeline.pttl(key)
                pipeline.get(key)
                kind, ttl_ms, value = await pipeline.execute(raise_on_error=False)
            for answer in (kind, ttl_ms):
                if isinstance(answer, Exception):
                    raise answer
        if kind == b"none":
            return None
        holder = _decode_holder(value) if kind == b"string" and ttl_ms != -1 else None
        if holder is not None:
            return value, holder
        logger.warning(
            "Deleting a Redis key that no scheduler wrote; the node can be locked again",
            extra={"key": key, "type": kind.decode(), "expires": ttl_ms != -1},
        )
        await self._delete_if(node, value if kind == b"string" else b"")
        return None

    async def _delete_if(self, node: NodeName, value: bytes) -> bool:
        with _translate_errors():
            return bool(await self._delete(keys=[_KEY.format(node=node)], args=[value]))


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except redis.exceptions.ResponseError as exc:
        raise Unavailable(
            f"Redis refused the node lock ({exc}), so nodes that need it get no pod; correct its "
            "settings or rights. The pod will be retried"
        ) from exc
    except (redis.exceptions.RedisError, OSError) as exc:
        raise Unavailable(
            f"Redis is unavailable ({exc}), so nodes that need the node lock get no pod; start it "
            "again. The pod will be retried"
        ) from exc


def _decode_holder(value: bytes) -> LockHolder | None:
    """Decode a lock's value; None if it was not written here."""
    try:
        held = orjson.loads(value)
        return LockHolder(
            pod_uid=PodUid(str(held["pod_uid"])),
            allocation_id=AllocationId(str(held["allocation_id"])),
            token=int(held["token"]),
        )
    except (ValueError, TypeError, KeyError):
        return None


@asynccontextmanager
async def open_node_lock(settings: RedisSettings, *, lock_s: float) -> AsyncIterator[RedisNodeLock]:
    """Open the lock's client; if the server is unavailable, the first lock fails, not this call."""
    client = redis.asyncio.from_url(
        settings.url.get_secret_value(),
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        health_check_interval=15,
        # The driver's own three more tries would make a server that hangs cost as many time-outs;
        # a connection that the server has closed since is replaced without any.
        retry=Retry(NoBackoff(), 0),
    )
    try:
        yield RedisNodeLock(client, lock_s=lock_s)
    finally:
        with contextlib.suppress(redis.exceptions.RedisError, OSError, TimeoutError):
            await client.aclose()
