"""The keys of the node locks, and the scripts that take and free many of them in one call.

A lock is `SET hami:nodelock:<node> NX PX`, its value names pod, allocation and fencing token; it is
freed by compare-and-delete on the token. Pods whose reservations were written together come to
their locks in one turn of the event loop, and their nodes' reports together as well: what is asked
for in one turn goes as one script, because a call costs more than what is done to a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import orjson
import redis.asyncio
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.ledger.model import LockHolder

Item = TypeVar("Item")

_KEY = "hami:nodelock:{node}"
# One release, as the replicas of before publish it; and those of one call, a line each.
_RELEASED = "hami:nodelock:released"
_FREED = "hami:nodelock:freed"

# KEYS: locks; ARGV: ttl in ms, then value and allocation id of each. A holder of the same
# allocation takes over. Returns 1 for each that was taken, else 0.
_TAKE = """
local taken = {}
for number, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  if held and cjson.decode(held)['allocation_id'] ~= ARGV[2 * number + 1] then
    taken[number] = 0
  else
    redis.call('SET', key, ARGV[2 * number], 'PX', ARGV[1])
    taken[number] = 1
  end
end
return taken
"""
# KEYS: locks; ARGV: channel, then token and "node token" of each. A token that goes under another
# one's hold is published as well: whose replica it is (`shared_holds.py`) frees the lock when it
# was the last. Returns 1 for each that was freed, else 0.
_FREE = """
local freed, lines = {}, {}
for number, key in ipairs(KEYS) do
  local held = redis.call('GET', key)
  freed[number] = 0
  if held then
    table.insert(lines, ARGV[2 * number + 1])
    if cjson.decode(held)['token'] == tonumber(ARGV[2 * number]) then
      redis.call('DEL', key)
      freed[number] = 1
    end
  end
end
if #lines > 0 then redis.call('PUBLISH', ARGV[1], table.concat(lines, '\\n')) end
return freed
"""


class LockKeys:
    """The keys in one Redis; what its driver raises comes through."""

    def __init__(self, client: redis.asyncio.Redis, *, lock_s: float) -> None:
        """`lock_s`: so long a lock holds by itself."""
        self._client = client
        self._lock_ms = int(lock_s * 1000)
        self._take_script = client.register_script(_TAKE)
        self._free_script = client.register_script(_FREE)
        self._takes = _Joined(self._take_all)
        self._frees = _Joined(self._free_all)

    async def take(self, node: NodeName, holder: LockHolder) -> bool:
        """Whether the holder has the lock of the node now; its own allocation's it takes over."""
        return await self._takes.ask((node, holder))

    async def free(self, node: NodeName, token: int) -> bool:
        """Frees the lock if `token` holds it; True when it did."""
        return await self._frees.ask((node, token))

    async def holder(self, node: NodeName) -> LockHolder | None:
        """Who has it."""
        value = await self._client.get(_KEY.format(node=node))
        if value is None:
            return None
        held = orjson.loads(value)
        return LockHolder(
            pod_uid=PodUid(held["pod_uid"]),
            allocation_id=AllocationId(held["allocation_id"]),
            token=held["token"],
        )

    async def releases(self) -> AsyncIterator[tuple[NodeName, int]]:
        """Node and token of each release from now on, by any replica."""
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(_FREED, _RELEASED)
            while True:
                message = await subscription.get_message(
                    ignore_subscribe_messages=True, timeout=None
                )
                for line in () if message is None else message["data"].decode().splitlines():
                    # The oldest replicas publish the node alone.
                    node, _, token = line.partition(" ")
                    yield NodeName(node), int(token or 0)

    async def _take_all(self, asked: Sequence[tuple[NodeName, LockHolder]]) -> list[int]:
        args: list[bytes | str | int] = [self._lock_ms]
        for _, holder in asked:
            value = {
                "pod_uid": holder.pod_uid,
                "allocation_id": holder.allocation_id,
                "token": holder.token,
            }
            args += [orjson.dumps(value), holder.allocation_id]
        keys = [_KEY.format(node=node) for node, _ in asked]
        return list(await self._take_script(keys=keys, args=args))

    async def _free_all(self, asked: Sequence[tuple[NodeName, int]]) -> list[int]:
        args: list[str | int] = [_FREED]
        for node, token in asked:
            args += [token, f"{node} {token}"]
        keys = [_KEY.format(node=node) for node, _ in asked]
        return list(await self._free_script(keys=keys, args=args))


class _Joined(Generic[Item]):
    """What is asked in one turn of the event loop goes as one call; such calls wait for nobody."""

    def __init__(self, carry_out: Callable[[Sequence[Item]], Awaitable[Sequence[int]]]) -> None:
        self._carry_out = carry_out
        self._waiting: list[tuple[Item, asyncio.Future[bool]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def ask(self, item: Item) -> bool:
        """The item's answer. Raises: what the call raised."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            call = loop.create_task(self._call())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        answer: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((item, answer))
        return await answer

    async def _call(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            answers = await self._carry_out([item for item, _ in waiting])
        except Exception as exc:  # noqa: BLE001 - it is the askers'
            for _, future in waiting:
                if not future.done():  # else who asked was cancelled
                    future.set_exception(exc)
            return
        for (_, future), answer in zip(waiting, answers, strict=True):
            if not future.done():
                future.set_result(bool(answer))
