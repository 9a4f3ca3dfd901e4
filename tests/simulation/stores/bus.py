"""One process's client of the bus, with the methods of `hamicommon.bus.client.Bus`.

Delivery is at least once. The messages of one consumer arrive in any order: one may overtake
another. Source of the rules: `hamicommon.bus.consumer`.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from hamicommon.bus.client import (
    Handler,
    Message,
    NobodyAnswers,
    Outgoing,
    Responder,
    Subscription,
)
from hamicommon.bus.consumer import MAX_DELIVERIES, BatchHandler
from hamicommon.bus.pull import ACK_WAIT_S, RETRY_DELAY_S
from hamicommon.errors import InvalidRequest, Unavailable
from pydantic import BaseModel

from tests.simulation.cluster.processes import Process, Weather
from tests.simulation.stores.hub import Delivery, Hub, Queue

T = TypeVar("T")
RECONNECT_S = 1.0


class BusConnection:
    """One process's client."""

    def __init__(self, hub: Hub, process: Process, weather: Weather, seed: str) -> None:
        self._hub, self._process, self._weather = hub, process, weather
        self._rng = random.Random(f"{seed}:{process.name}:bus")
        self._began = asyncio.get_running_loop().time()
        self.dead_letters = 0
        self.letters = None
        """Dead letters, which have no reader here."""

    @property
    def connected(self) -> bool:
        """Match Bus.connected."""
        return asyncio.get_running_loop().time() >= self._hub.away_until

    @property
    def connected_for_s(self) -> float:
        """Match Bus.connected_for_s."""
        return max(0.0, asyncio.get_running_loop().time() - max(self._began, self._hub.away_until))

    @property
    def max_payload_bytes(self) -> int:
        """Match Bus.max_payload_bytes with a server's default."""
        return 1024 * 1024

    async def publish(
        self, subject: str, payload: BaseModel, *, message_id: str, timeout_s: float = 2.0
    ) -> None:
        """Match Bus.publish."""
        self._check()
        data = payload.model_dump_json().encode()

        async def at_server() -> None:
            self._check()
            self._hub.store(self, subject, data, message_id)

        await self._in_time(self._process.across("bus", self._rng, at_server), timeout_s)

    async def publish_all(self, messages: Sequence[Outgoing]) -> list[Unavailable | None]:
        """Match Bus.publish_all."""
        results: list[Unavailable | None] = []

        async def at_server() -> None:
            self._check()
            for message in messages:
                self._hub.store(self, message.subject, message.data, message.message_id)

        try:
            await self._in_time(self._process.across("bus", self._rng, at_server), 2.0)
        except Unavailable as exc:
            results = [exc] * len(messages)
        return results or [None] * len(messages)

    async def request(
        self, subject: str, payload: BaseModel | bytes, *, timeout_s: float = 2.0
    ) -> bytes:
        """Match Bus.request."""
        self._check()
        served = self._hub.responders(subject)
        if not served:
            await self._process.hop(0.001)
            raise NobodyAnswers(f"nobody serves {subject}")
        other, respond = self._rng.choice(served)
        data = payload if isinstance(payload, bytes) else payload.model_dump_json().encode()

        async def at_other() -> bytes:
            # The other process answers in its own time, or never.
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            other.on_request(respond, subject, data, answer)
            return await answer

        return await self._in_time(self._process.across("bus", self._rng, at_other), timeout_s)

    def on_request(
        self, respond: Responder, subject: str, data: bytes, answer: asyncio.Future[bytes]
    ) -> None:
        """Answer another process's request; a request that can't be answered times out."""
        self._process.start(self._answer(respond, subject, data, answer))

    async def _answer(
        self, respond: Responder, subject: str, data: bytes, answer: asyncio.Future[bytes]
    ) -> None:
        await self._process.hop(self._rng.uniform(0.0005, 0.005))
        with contextlib.suppress(InvalidRequest, Unavailable):
            reply = await respond(subject, data)
            if not answer.done():
                body = reply if isinstance(reply, bytes) else reply.model_dump_json().encode()
                answer.set_result(body)

    async def serve(self, subject: str, queue: str, respond: Responder) -> None:
        """Match Bus.serve; no request waits for the one before."""
        del queue
        self._hub.serve(self, subject, respond)
        await asyncio.Event().wait()

    async def serve_feeds(self, queue: str) -> None:
        """Wait forever: no simulated webhook asks for a feed."""
        await asyncio.Event().wait()

    async def settle_deliveries(self, queue: str) -> None:
        """Wait forever: no simulated service settles a delivery."""
        await asyncio.Event().wait()

    async def follow(self, subjects: Sequence[str], handle: Handler) -> None:
        """Match Bus.follow."""
        self._hub.follow(self, subjects, handle)
        await asyncio.Event().wait()

    def hear(self, handle: Handler, message: Message) -> None:
        """Receive a followed message: at most once."""
        if self.connected and self._process.alive:
            struck = self._weather.strike("bus", asyncio.get_running_loop().time(), self._rng)
            if struck not in ("refused", "lost"):
                self._process.start(self._on_message(handle, message, late=bool(struck)))

    async def _on_message(self, handle: Handler, message: Message, *, late: bool) -> None:
        await self._process.hop(self._rng.uniform(0.0005, 3.0 if late else 0.01))
        with contextlib.suppress(InvalidRequest, Unavailable):
            await handle(message)

    async def consume(self, what: Subscription, handle: Handler) -> None:
        """Match Bus.consume."""
        loop = asyncio.get_running_loop()
        while True:
            if not self.connected:
                await asyncio.sleep(RECONNECT_S)
                continue
            queue = self._hub.queue(what)
            ready = [item for item in queue.waiting if item.due <= loop.time()]
            if not ready:
                queue.arrived.clear()
                due = min((item.due for item in queue.waiting), default=loop.time() + 60.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await queue.arrived.wait()
                continue
            item = ready[0]
            item.due, item.deliveries = loop.time() + ACK_WAIT_S, item.deliveries + 1
            await self._process.hop(self._rng.uniform(0.0005, 0.005))
            await self._deliver(queue, item, handle)

    async def consume_all(self, what: Subscription, handle_all: BatchHandler) -> None:
        """Match Bus.consume_all; messages never come together here."""

        async def handle(message: Message) -> None:
            [error] = await handle_all([message])
            if error is not None:
                raise error

        await self.consume(what, handle)

    async def _deliver(self, queue: Queue, item: Delivery, handle: Handler) -> None:
        loop = asyncio.get_running_loop()
        try:
            await handle(item.message)
        except InvalidRequest as exc:
            self._hub.dead_letters.append(str(exc))
            self.dead_letters += 1
        except Exception as exc:  # noqa: BLE001 - as hamicommon.bus.consumer
            if isinstance(exc, Unavailable) or item.deliveries < MAX_DELIVERIES:
                item.due = loop.time() + RETRY_DELAY_S
                return
            self._hub.dead_letters.append(str(exc))
            self.dead_letters += 1
        await self._process.hop(self._rng.uniform(0.0005, 0.005))
        struck = self._weather.strike("bus", loop.time(), self._rng)
        if struck:
            item.due = loop.time() + 1.0
        elif item in queue.waiting:
            queue.waiting.remove(item)

    def _check(self) -> None:
        if not self.connected:
            raise Unavailable("NATS is not connected")

    async def _in_time(self, call: Awaitable[T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError:
            raise Unavailable("NATS: timeout") from None
