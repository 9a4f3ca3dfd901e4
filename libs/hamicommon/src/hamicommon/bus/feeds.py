"""Feeds: the newest message of each subject, then new ones, for clients that own no consumer.

The creator of a consumer chooses any deliver subject, whatever the creator's rights (`deliveries`).
Therefore the webhook asks the scheduler, which creates a consumer that pushes to the inbox in the
request, if it is one of the webhook's. The server deletes that consumer when no client listens
there. Nothing is acknowledged: a reader that misses a message asks for a new consumer.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, Header
from pydantic import Field

from hamicommon import events
from hamicommon.bus.permissions import FEEDS_SUBJECT, asker_inboxes
from hamicommon.bus.reader import read
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.shutdown import propagate_cancellation

HEARTBEAT_S = 2.0
MAX_SILENCE_S = 3 * HEARTBEAT_S
FORGOTTEN_AFTER_S = 10.0
_LAST_CONSUMER_HEADER = "Nats-Last-Consumer"


class FeedKind(StrEnum):
    """Feeds that a client may follow."""

    INVENTORIES = "inventories"
    LEDGER_NUMBERS = "ledger-numbers"


SOURCES = {
    FeedKind.INVENTORIES: (events.INVENTORY_STREAM, "hami.inventory.v1.*"),
    FeedKind.LEDGER_NUMBERS: (events.LEDGER_STREAM, "hami.ledger.v1.>"),
}


class FeedRequest(events.Payload):
    """Request for a feed; its messages are sent to the caller's inbox."""

    feed: FeedKind
    inbox: str = Field(max_length=200)


class FeedOpened(events.Payload):
    """Answer to the request: the messages follow."""


class Feeds:
    """Open feeds for clients; used by the scheduler."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def respond(self, subject: str, body: bytes) -> FeedOpened:
        """Answer a request for a feed with a new consumer that delivers it.

        Raises: InvalidRequest, Unavailable.
        """
        request = read(FeedRequest, body, "question for a feed")
        inboxes = asker_inboxes(subject)
        if not re.fullmatch(re.escape(inboxes) + "[A-Za-z0-9]+", request.inbox):
            raise InvalidRequest(f"feeds go to {inboxes}NAME, and not to {request.inbox!r}")
        stream, subjects = SOURCES[request.feed]
        config = ConsumerConfig(
            filter_subject=subjects,
            deliver_subject=request.inbox,
            deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
            ack_policy=AckPolicy.NONE,
            idle_heartbeat=HEARTBEAT_S,
            inactive_threshold=FORGOTTEN_AFTER_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            with propagate_cancellation():
                await self._js.add_consumer(stream, config)
        except (nats.errors.Error, OSError, TimeoutError) as exc:
            raise Unavailable(f"NATS: feed of {stream}: {exc or type(exc).__name__}") from exc
        return FeedOpened()


async def read_feed(
    client: Client,
    feed: FeedKind,
    take: Callable[[Msg], Awaitable[None]],
    ask: Callable[[str, FeedRequest], Awaitable[bytes]],
    on_message: Callable[[], object],
) -> None:
    """Ask for the feed and hand over its messages in order.

    Raises: Unavailable, nats.errors.Error or OSError when it must be opened again, because a
    message was missed or the server is silent.
    """
    subscription = await client.subscribe(client.new_inbox())
    try:
        await ask(FEEDS_SUBJECT, FeedRequest(feed=feed, inbox=subscription.subject))
        taken = 0
        while True:
            with propagate_cancellation():
                message = await subscription.next_msg(timeout=MAX_SILENCE_S)
            on_message()
            headers = message.headers or {}
            if Header.STATUS in headers:
                last = int(headers.get(_LAST_CONSUMER_HEADER, taken))
                _check_sequence(last, taken)
                continue
            _check_sequence(message.metadata.sequence.consumer, taken + 1)
            taken += 1
            await take(message)
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()


def _check_sequence(found: int, expected: int) -> None:
    if found != expected:
        raise Unavailable(f"message {expected} of the feed was missed")
