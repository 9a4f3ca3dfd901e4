"""Request messages of a pull consumer ahead of time, and acknowledge them.

nats-py's `fetch` (2.16) sends two requests for each batch that arrives, and reads every message in
a separate task; if a message or two arrive at a time, that costs both sides more than the messages.
Here one request covers `FETCH_BATCH` messages or `FETCH_WAIT_S` seconds, whichever is over first,
and messages that arrive in the same iteration of the loop are handed over together.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import Header, StatusCode
from nats.js.errors import APIError

# A request waits this long at the server. One that was pending when the server went away is noticed
# only when this and the time for its answer are over, so it bounds the delay after a reconnect too.
FETCH_WAIT_S = 2.0
ANSWER_S = 0.5
FETCH_BATCH = 64
MAX_ACK_PENDING = FETCH_BATCH * 4
ACK_WAIT_S = 30.0
RETRY_DELAY_S = 1.0
_OVER = frozenset({StatusCode.NO_MESSAGES, StatusCode.REQUEST_TIMEOUT, StatusCode.CONFLICT})


class Settlement(StrEnum):
    """Result of handling a message, as reported to the server."""

    DONE = "done"
    RETRY = "retry"
    UNREAD = "unread"
    BURIED = "buried"


ACKNOWLEDGEMENTS = {
    Settlement.DONE: b"+ACK",
    Settlement.RETRY: b'-NAK {"delay": %d}' % int(RETRY_DELAY_S * 1e9),
    Settlement.UNREAD: b"-NAK",
    Settlement.BURIED: b"+TERM",
}


class Pull:
    """Messages of one pull consumer, requested in batches."""

    def __init__(self, client: Client, *, stream: str, consumer: str) -> None:
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._came: list[Msg] = []
        self._woken = asyncio.Event()
        self._wanted = 0
        """Messages that the pending request may still bring; 0: none is pending."""
        self._answered_by_s = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Pull]:
        """Subscribe; at the end, messages that `next` has not returned go back to the stream."""
        subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
        try:
            yield self
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()
                await self.settle([(message, Settlement.UNREAD) for message in self._came])

    async def next(self) -> list[Msg]:
        """Return the messages that have come; an empty list when none came in time.

        Raises: nats.errors.Error, OSError; TimeoutError when the server does not answer.
        """
        if not self._came:
            if not self._wanted:
                await self._ask(FETCH_WAIT_S)
            try:
                async with asyncio.timeout(max(0.0, self._answered_by_s - time.monotonic())):
                    await self._woken.wait()
            except TimeoutError:
                self._wanted = 0
                raise
        self._woken.clear()
        came, self._came = self._came, []
        messages = [message for message in came if not self._is_end(message)]
        self._wanted = max(0, self._wanted - len(messages))
        return messages

    async def settle(self, outcomes: Sequence[tuple[Msg, Settlement]]) -> None:
        """Report the results of messages to the server.

        A lost answer makes it deliver a message again.
        """
        for message, outcome in outcomes:
            await self._client.publish(message.reply, ACKNOWLEDGEMENTS[outcome])

    async def _ask(self, wait_s: float) -> None:
        until = {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
        body = {"batch": FETCH_BATCH, **until}
        await self._client.publish(self._subject, orjson.dumps(body), reply=self._inbox)
        self._wanted = FETCH_BATCH
        self._answered_by_s = time.monotonic() + wait_s + ANSWER_S

    async def _on_message(self, message: Msg) -> None:
        self._came.append(message)
        self._woken.set()

    def _is_end(self, message: Msg) -> bool:
        """Whether the message is NATS's status that ends the request. Raises: APIError."""
        status = (message.headers or {}).get(Header.STATUS)
        if status is None:
            return False
        self._wanted = 0
        if status not in _OVER:
            raise APIError.from_msg(message)
        return True
