"""Node locks in Redis, with lease rows in Postgres while Redis is away.

`lock_keys.py` has the keys. Waiters of one replica queue per node in order of arrival, so only the
first of them asks Redis; a release is published on a channel, so that waiters of other replicas
need no short polling. Who waits for long asks the ledger whether the holder still needs the lock: a
release that got lost, or a binder that died, costs a second and not the expiry.
A Redis that hangs costs one operation in `OPEN_S` its time-out, not every pod several.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

import redis.asyncio
import redis.exceptions
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, Unavailable
from hamicommon.ledger.model import LockHolder
from hamicommon.settings import RedisSettings

from hami_scheduler.adapters.circuit_breaker import Circuit
from hami_scheduler.adapters.redis.lock_keys import LockKeys

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Backs the channel up: a lost one (or an expiry) delays a waiter by at most this.
_POLL_S = 0.25
_RETRY_S = 1.0
_DOUBT_AFTER_S = 1.0
OPEN_S = 2.0


class Lease(Protocol):
    """The stand-in while Redis is away (`PostgresNodeLease`)."""

    async def attempt(self, node: NodeName, holder: LockHolder) -> bool:
        """Takes it if free."""
        ...

    async def release(self, node: NodeName, token: int) -> bool:
        """Frees it."""
        ...

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Who has it."""
        ...


StillNeeded = Callable[[LockHolder], Awaitable[bool]]
"""Whether the ledger has the holder between bind and Allocate. Raises: Unavailable."""
OnFreed = Callable[[NodeName, int], Awaitable[None]]
"""Gets node and token."""


class _RedisAwayError(Exception):
    """Redis did not answer, or was not asked because it had not answered just before."""


class RedisNodeLock:
    """Port NodeLock."""

    def __init__(
        self,
        keys: LockKeys,
        lease: Lease,
        *,
        lock_s: float,
        still_needed: StillNeeded,
    ) -> None:
        self._keys = keys
        self._lease = lease
        self._lock_s = lock_s
        self._still_needed = still_needed
        self._queues: dict[NodeName, asyncio.Lock] = {}
        self._waiting: dict[NodeName, int] = {}
        self._freed: dict[NodeName, asyncio.Event] = {}
        self._held: dict[NodeName, tuple[int, float]] = {}
        """Tokens that took a node through here, and until when they may have it."""
        self._circuit = Circuit(open_s=OPEN_S)
        self._away_at: float | None = None
        self.fallbacks = 0

    async def acquire(self, node: NodeName, holder: LockHolder, *, wait_s: float) -> None:
        """See the port."""
        queue = self._queues.setdefault(node, asyncio.Lock())
        self._waiting[node] = self._waiting.get(node, 0) + 1
        try:
            async with asyncio.timeout(wait_s), queue:
                await self._wait_for(node, holder)
        except TimeoutError:
            # The answer to an attempt may have been lost on the way; nobody must wait for a ghost.
            await self.release(node, holder.token)
            raise Conflict(
                f"node {node} was being bound to another pod for {wait_s:g} s: node lock contention"
            ) from None
        finally:
            self._waiting[node] -= 1
            if not self._waiting[node]:
                del self._waiting[node], self._queues[node]
                self._freed.pop(node, None)

    async def _wait_for(self, node: NodeName, holder: LockHolder) -> None:
        freed = self._freed.setdefault(node, asyncio.Event())
        doubt_at = time.monotonic() + _DOUBT_AFTER_S
        while True:
            freed.clear()
            if not self._held_by_another(node, holder) and await self._attempt(node, holder):
                self._held[node] = holder.token, time.monotonic() + self._lock_s
                return
            if time.monotonic() >= doubt_at:
                await self._free_if_stale(node)
                doubt_at = time.monotonic() + _DOUBT_AFTER_S
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await freed.wait()
                    continue
            # Somebody else may have freed it without our hearing of it.
            self._held.pop(node, None)

    def _held_by_another(self, node: NodeName, holder: LockHolder) -> bool:
        """True: an attempt would be in vain, as far as this replica knows."""
        token, until = self._held.get(node, (holder.token, 0.0))
        return token != holder.token and time.monotonic() < until

    async def _free_if_stale(self, node: NodeName) -> None:
        holder = await self.holder(node)
        if holder is None:
            return
        try:
            if await self._still_needed(holder):
                return
        except Unavailable:
            return
        logger.warning(
            "node lock of a holder that needs it no more",
            extra={"node": node, "pod_uid": holder.pod_uid, "token": holder.token},
        )
        await self.release(node, holder.token)

    async def _attempt(self, node: NodeName, holder: LockHolder) -> bool:
        try:
            taken = await self._ask(self._keys.take(node, holder))
        except _RedisAwayError:
            return await self._lease.attempt(node, holder)
        if not taken:
            return False
        if not self._recently_away():
            return True
        # Somebody may still hold a lease from the time when Redis was away.
        if await self._lease.attempt(node, holder):
            return True
        await self.release(node, holder.token)
        return False

    async def release(self, node: NodeName, token: int) -> bool:
        """See the port."""
        freed = False
        # Else the lease below, or the key's expiry.
        with contextlib.suppress(_RedisAwayError):
            freed = await self._ask(self._keys.free(node, token))
        if self._recently_away():
            freed = await self._lease.release(node, token) or freed
        self._wake(node, token)
        return freed

    async def holder(self, node: NodeName) -> LockHolder | None:
        """See the port."""
        try:
            held = await self._ask(self._keys.holder(node))
        except _RedisAwayError:
            return await self._lease.holder(node)
        if held is None and self._recently_away():
            return await self._lease.holder(node)
        return held

    async def listen(self, on_freed: OnFreed) -> None:
        """Wakes waiters on releases by other replicas; runs until cancelled.

        `on_freed` gets each token that was given back, by this replica too.
        """
        while True:
            try:
                async for node, token in self._keys.releases():
                    self._wake(node, token)
                    await on_freed(node, token)
            except (redis.exceptions.RedisError, OSError, TimeoutError):
                await asyncio.sleep(_RETRY_S)

    def _wake(self, node: NodeName, token: int) -> None:
        # Of our own releases we hear twice: the second time somebody else may have the node.
        if token in (0, self._held.get(node, (0, 0.0))[0]):
            self._held.pop(node, None)
        if event := self._freed.get(node):
            event.set()

    async def _ask(self, call: Coroutine[None, None, T]) -> T:
        """The call's answer, where Redis is asked at all. Raises: _RedisAwayError."""
        if not self._circuit.allows(time.monotonic()):
            call.close()
            self._went_away("it did not answer just before")
            raise _RedisAwayError
        try:
            answer = await call
        except (redis.exceptions.RedisError, OSError, TimeoutError) as exc:
            self._circuit.failed(time.monotonic())
            self._went_away(str(exc))
            raise _RedisAwayError from exc
        self._circuit.answered()
        return answer

    def _went_away(self, error: str) -> None:
        """Also for what was not asked: leases taken now must be respected for as long as a lock."""
        if self._away_at is None or not self._recently_away():
            logger.warning("Redis away, node locks in Postgres", extra={"error": error})
        self._away_at = time.monotonic()
        self.fallbacks += 1

    def _recently_away(self) -> bool:
        return self._away_at is not None and time.monotonic() - self._away_at < self._lock_s


@asynccontextmanager
async def open_node_lock(
    settings: RedisSettings, lease: Lease, *, lock_s: float, still_needed: StillNeeded
) -> AsyncIterator[RedisNodeLock]:
    """Opens a client; a server that is away is met by the first lock, not here."""
    client = redis.asyncio.from_url(
        settings.url.get_secret_value(),
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        health_check_interval=15,
    )
    try:
        keys = LockKeys(client, lock_s=lock_s)
        yield RedisNodeLock(keys, lease, lock_s=lock_s, still_needed=still_needed)
    finally:
        with contextlib.suppress(redis.exceptions.RedisError, OSError, TimeoutError):
            await client.aclose()
