"""Publish, consume, ask and answer over NATS; other packages see no type of the NATS client.

The trace context travels in the headers. While the server is unavailable `publish` raises
Unavailable immediately and `connected` is False; consumers (`consumer`) continue by themselves when
the server is available again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from pydantic import BaseModel

from hamicommon import telemetry
from hamicommon.bus.consumer import (
    LOG_LINES_PER_S,
    PUBLISH_TIMEOUT_S,
    BatchHandler,
    Consumer,
    Deliver,
    Handler,
    Message,
    Subscription,
    message_of,
    outage_of,
    trace_of,
)
from hamicommon.bus.dead_letters import DeadLetters
from hamicommon.bus.deliveries import SETTLED_SUBJECTS, Delivery, acknowledgements
from hamicommon.bus.feeds import FeedKind, Feeds, read_feed
from hamicommon.bus.permissions import FEEDS_SUBJECT, asker_inboxes
from hamicommon.bus.pull import RETRY_DELAY_S
from hamicommon.bus.streams import StreamKeeper
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.outages import Outage
from hamicommon.process.rate_limit import RateLimit
from hamicommon.process.shutdown import propagate_cancellation

__all__ = [
    "Bus",
    "Deliver",
    "FeedKind",
    "Handler",
    "Message",
    "NobodyAnswers",
    "Outgoing",
    "Responder",
    "Subscription",
]

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 3.0
LAST_ANSWERS_S = 1.0


class NobodyAnswers(Unavailable):
    """Error: the bus is up, but nothing serves the subject."""


Responder = Callable[[str, bytes], Awaitable[BaseModel | bytes]]
"""Function from a request's subject and body to the answer; bytes are sent unchanged."""


class Bus:
    """One connection to NATS."""

    def __init__(
        self, client: Client, js: JetStreamContext, user: str, *, stream_replicas: int = 1
    ) -> None:
        """`user`: name that the server knows us by.

        Without users at the server, the service's name.
        """
        self._user = user
        self._client = client
        self._js = js
        self._up_since: float | None = None
        self._was_up = asyncio.Event()
        self._closed = False
        self.dead_letters = 0
        self._lines = RateLimit(burst=1, per_s=LOG_LINES_PER_S)
        self.trusted_until: datetime | None = None
        """When the last authority that verifies the server expires; None: unknown, or no TLS."""
        self.streams = StreamKeeper(
            js, replicas=stream_replicas, is_connected=lambda: self.connected
        )
        self.letters = DeadLetters(js)

    @property
    def connected(self) -> bool:
        """Whether the connection is up."""
        return bool(self._client.is_connected)

    @property
    def was_up(self) -> bool:
        """Whether the connection was ever up."""
        return self._was_up.is_set()

    @property
    def connected_for_s(self) -> float:
        """Seconds since the connection was last established; 0 while it is down."""
        if not self.connected or self._up_since is None:
            return 0.0
        return time.monotonic() - self._up_since

    @property
    def max_payload_bytes(self) -> int:
        """Return the maximum size in bytes of a message, headers included, for this server."""
        return self._client.max_payload

    def _warn(self, text: str, subject: str, exc: Exception) -> None:
        left_out = self._lines.take(subject, at_s=time.monotonic())
        if left_out is not None:
            extra = {"subject": subject, "error": str(exc), "left_out": left_out}
            logger.warning(text, extra=extra)

    def _count_dead_letter(self) -> None:
        self.dead_letters += 1

    def mark_up(self) -> None:
        """Record that the connection was established."""
        self._up_since = time.monotonic()
        self._was_up.set()

    async def publish(
        self,
        subject: str,
        payload: BaseModel,
        *,
        message_id: str,
        timeout_s: float = PUBLISH_TIMEOUT_S,
    ) -> None:
        """Store the payload in its stream; the server drops a message whose `message_id` it has.

        Raises: Unavailable when it is not known to be stored.
        """
        if not self.connected:
            raise Unavailable("NATS is not connected")
        message = Outgoing(
            subject=subject,
            data=payload.model_dump_json().encode(),
            message_id=message_id,
            headers=telemetry.inject(),
        )
        await store(self._js, message, timeout_s=timeout_s)

    async def publish_all(
        self, messages: Sequence[Outgoing], *, timeout_s: float = PUBLISH_TIMEOUT_S
    ) -> list[Unavailable | None]:
        """Store many messages, sent without waiting in between.

        Return for each None or its error.
        """
        if not self.connected:
            return [Unavailable("NATS is not connected")] * len(messages)
        return await store_all(self._js, messages, timeout_s=timeout_s)

    async def request(
        self, subject: str, payload: BaseModel | bytes, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """Send a request and return the body of the reply; bytes are sent unchanged.

        Raises: NobodyAnswers when no responder serves the subject, Unavailable when the bus is
        unavailable or the answer takes too long.
        """
        if not self.connected:
            raise Unavailable("NATS is not connected")
        data = payload if isinstance(payload, bytes) else payload.model_dump_json().encode()
        try:
            with propagate_cancellation():
                reply = await self._client.request(
                    subject, data, timeout=timeout_s, headers=telemetry.inject()
                )
        except nats.errors.NoRespondersError as exc:
            raise NobodyAnswers(f"NATS: no service answers on {subject}") from exc
        except (nats.errors.Error, OSError, TimeoutError) as exc:
            raise Unavailable(f"NATS: request {subject}: {exc or type(exc).__name__}") from exc
        return bytes(reply.data)

    async def serve(self, subject: str, queue: str, respond: Responder) -> None:
        """Answer requests on `subject` until cancelled; replicas with the same `queue` share them.

        Requests that arrived before are still answered. A later one fails immediately with "no
        responders"; silence would leave its outcome unknown. A request is ignored if its reply
        subject is no inbox of the user that may ask there (`asker_inboxes`).
        """

        async def on_message(message: Msg) -> None:
            if not message.reply.startswith(asker_inboxes(message.subject)):
                return
            with trace_of(message):
                try:
                    reply = await respond(message.subject, message.data)
                    raw = reply if isinstance(reply, bytes) else reply.model_dump_json().encode()
                    await message.respond(raw)
                except (InvalidRequest, Unavailable) as exc:
                    self._warn("Failed to answer a request", message.subject, exc)
                except (nats.errors.Error, OSError) as exc:
                    logger.warning("Failed to send a reply", extra={"error": str(exc)})

        # The client renews a subscription on every reconnect, but can't make one before the first.
        await self._was_up.wait()
        subscription = await self._client.subscribe(subject, queue=queue, cb=on_message)
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(LAST_ANSWERS_S):
                    await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py: partly typed
                    await self._client.flush()

    async def follow(self, subjects: Sequence[str], handle: Handler, *, queue: str = "") -> None:
        """Call `handle` for each new message on these subjects, at most once, until cancelled.

        Followers in one `queue` share the messages.

        For caches that can do without one: nothing is stored, acknowledged or delivered again, and
        what passes while the connection is unavailable is missed. With `echo=False` the messages
        of this connection are left out.
        """

        async def on_message(raw: Msg) -> None:
            message = Message(subject=raw.subject, data=raw.data, stream_sequence=0, deliveries=1)
            with trace_of(raw):
                try:
                    await handle(message)
                except (InvalidRequest, Unavailable) as exc:
                    self._warn("Skipped a message that could not be handled", raw.subject, exc)

        await self._was_up.wait()
        made = [
            await self._client.subscribe(subject, queue=queue, cb=on_message)
            for subject in subjects
        ]
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                for subscription in made:
                    await subscription.unsubscribe()

    async def settle_deliveries(self, queue: str) -> None:
        """Acknowledge the messages that readers of deliveries report as handled, until cancelled.

        Replicas in one `queue` share the work; a reader has no right to do it.
        """

        async def on_settled(message: Message) -> None:
            for reply, body in acknowledgements(message.subject, message.data):
                await self._client.publish(reply, body)

        await self.follow([SETTLED_SUBJECTS], on_settled, queue=queue)

    async def serve_feeds(self, queue: str) -> None:
        """Open feeds for the webhook when it asks for them, until cancelled."""
        await self.serve(FEEDS_SUBJECT, queue, Feeds(self._js).respond)

    async def follow_feed(self, feed: FeedKind, handle: Handler) -> None:
        """Call `handle` for the newest message of each subject, and for each later one.

        Until cancelled or closed. Everything comes again after a message was missed, and on each
        connection. A message that `handle` fails on is logged and passed over.
        """
        outage = Outage(
            logger,
            failed="Failed to follow a feed, retrying",
            again="Following the feed again",
            about={"feed": feed},
        )

        async def take(raw: Msg) -> None:
            with trace_of(raw):
                try:
                    await handle(message_of(raw))
                except (InvalidRequest, Unavailable) as exc:
                    self._warn("Skipped a message that could not be handled", raw.subject, exc)
                except Exception:  # whatever it is, the next message is handled
                    logger.exception("Failed to handle a message", extra={"subject": raw.subject})

        await self._was_up.wait()
        while not self._closed:
            try:
                await read_feed(self._client, feed, take, self.request, outage.on_success)
            except (Unavailable, nats.errors.Error, OSError) as exc:
                if self._closed:
                    return
                outage.on_failure(exc)
                await asyncio.sleep(RETRY_DELAY_S)

    async def consume(self, what: Subscription | Delivery, handle: Handler) -> None:
        """Call `handle` for every message, in order, until cancelled or the bus is closed.

        It waits for a stream or a delivery that is not there yet, and for a server that is
        unavailable.
        """
        await self._consume(what, handle=handle)

    async def consume_all(self, what: Subscription | Delivery, handle_all: BatchHandler) -> None:
        """Consume as `consume` does, but hand over messages that arrived together in one call."""
        await self._consume(what, handle_all=handle_all)

    async def _consume(
        self,
        what: Subscription | Delivery,
        *,
        handle: Handler | None = None,
        handle_all: BatchHandler | None = None,
    ) -> None:
        outage = outage_of(what)
        consumer = Consumer(
            self._client,
            self._js,
            what,
            handle,
            handle_all=handle_all,
            user=self._user,
            on_dead_letter=self._count_dead_letter,
            on_answer=outage.on_success,
        )
        # The NATS client drops requests that are made before its first connection.
        while not self.was_up and not self._closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_DELAY_S):
                    await self._was_up.wait()
        while not self._closed:
            try:
                with propagate_cancellation():
                    await consumer.run()
            except (nats.errors.Error, OSError, TimeoutError) as exc:
                if self._closed:
                    return
                outage.on_failure(exc)
                await asyncio.sleep(RETRY_DELAY_S)

    async def close(self) -> None:
        """Close the connection; consumers end without being cancelled."""
        self._closed = True
        await self.streams.close()
        # A server that stopped reading would block the last writes forever. AttributeError: the
        # client flushes its buffer to a TLS connection that is closed.
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError, AttributeError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to be stored; the server drops a message whose id it has."""

    subject: str
    data: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


async def store(js: JetStreamContext, message: Outgoing, *, timeout_s: float) -> None:
    """Store the message in the stream of its subject.

    nats-py's `publish_async` (2.16) needs 30 us of CPU per message in batches of 256 where this
    needs 42, but it never frees the place of a message that the client itself refuses: after 4000
    of these it waits forever, and with it the relay of the outbox.

    Raises: Unavailable when it is not known to be stored.
    """
    headers = {**message.headers, "Nats-Msg-Id": message.message_id}
    try:
        with propagate_cancellation():
            await js.publish(message.subject, message.data, timeout=timeout_s, headers=headers)
    except (nats.errors.Error, OSError, TimeoutError) as exc:
        reason = str(exc) or type(exc).__name__
        raise Unavailable(f"NATS: publish on {message.subject}: {reason}") from exc


async def store_all(
    js: JetStreamContext, messages: Sequence[Outgoing], *, timeout_s: float
) -> list[Unavailable | None]:
    """Send the messages in order without waiting for each one's acknowledgement.

    Returns: for each message None, or why it is not known to be stored.
    """

    async def outcome(message: Outgoing) -> Unavailable | None:
        try:
            await store(js, message, timeout_s=timeout_s)
        except Unavailable as exc:
            return exc
        return None

    return await asyncio.gather(*map(outcome, messages))
