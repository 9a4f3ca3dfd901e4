"""Consume one stream: hand over its messages, and acknowledge, retry or dead-letter each of them.

Delivery is at least once: handlers are idempotent by the id in their payload. A message that can't
be read (`InvalidRequest`) or that failed `MAX_DELIVERIES` times goes to the dead letters with its
reason; one whose handler is `Unavailable` comes again. `client.Bus.consume` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from opentelemetry import context as otel_context

from hamicommon import telemetry
from hamicommon.bus.dead_letters import bury
from hamicommon.bus.deliveries import Delivery, Push
from hamicommon.bus.pull import ACK_WAIT_S, MAX_ACK_PENDING, Pull, Settlement
from hamicommon.bus.streams import LETTERS_OF_A_SENDER
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.process.outages import Outage
from hamicommon.process.rate_limit import RateLimit
from hamicommon.process.shutdown import end, propagate_cancellation

logger = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 2.0
MAX_DELIVERIES = 10
BACKEND_RECOVERY_S = 5.0
"""Time without a message that had to wait after which a backend counts as recovered."""
LOG_LINES_PER_S = 1.0
LETTERS_PER_S = 1.0
"""Maximum rate of dead letters per subject, so that a bad sender does not fill log and store."""
MAX_BATCHES = 4
"""Maximum number of batches that one BatchHandler processes at the same time."""


class Deliver(StrEnum):
    """Position in the stream at which a new consumer starts."""

    ALL = "all"
    NEW = "new"
    LAST_PER_SUBJECT = "last_per_subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as the server delivered it."""

    subject: str
    data: bytes
    stream_sequence: int
    deliveries: int
    received_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Time at which the bus stored the message, which no sender can choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Messages to consume; replicas with the same `consumer` name share them.

    Only the scheduler may; other services read a `Delivery` or a `Feed`.
    """

    stream: str
    subject: str
    consumer: str
    deliver: Deliver = Deliver.ALL


Handler = Callable[[Message], Awaitable[None]]
BatchHandler = Callable[[Sequence[Message]], Awaitable[Sequence[Exception | None]]]
"""Function that handles messages which arrived together; returns None or an error for each.

It is called again with the next messages before it has returned.
"""


def outage_of(what: Subscription | Delivery) -> Outage:
    """Return the log of outages of this subscription."""
    return Outage(
        logger,
        failed="Failed to consume messages, retrying",
        again="Consuming messages again",
        about={"stream": what.stream, "consumer": what.consumer},
    )


class Consumer:
    """Hands the messages of one subscription to its handler."""

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        what: Subscription | Delivery,
        handle: Handler | None = None,
        *,
        handle_all: BatchHandler | None = None,
        user: str,
        on_dead_letter: Callable[[], None],
        on_answer: Callable[[], object],
    ) -> None:
        """Exactly one of `handle` and `handle_all` is given.

        `user` is ours on the bus; `on_answer` is called after each wait for messages.
        """
        self._client = client
        self._js = js
        self._what = what
        self._handle = handle
        self._handle_all = handle_all
        self._user = user
        self._on_dead_letter = on_dead_letter
        self._on_answer = on_answer
        self._lines = RateLimit(burst=1, per_s=LOG_LINES_PER_S)
        self._letters = RateLimit(burst=LETTERS_OF_A_SENDER, per_s=LETTERS_PER_S)
        self._backend = Outage(
            logger,
            failed="Failed to reach the backend, messages are redelivered",
            again="Handling messages again",
            about={"stream": what.stream, "consumer": what.consumer},
            starts_within_s=0.0,
            recovery_s=BACKEND_RECOVERY_S,
        )

    async def run(self) -> None:
        """Fetch and handle messages until cancelled.

        Raises: nats.errors.Error, OSError or TimeoutError when it must be started again.
        """
        if isinstance(self._what, Delivery):
            push = Push(self._client, self._what)
            await self._run(push, push.next)
        else:
            await self._run_pulled(self._what)

    async def _run_pulled(self, what: Subscription) -> None:
        config = ConsumerConfig(
            name=what.consumer,
            durable_name=what.consumer,
            filter_subject=what.subject,
            deliver_policy=DeliverPolicy(what.deliver.value),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=MAX_ACK_PENDING,
        )
        await self._js.add_consumer(what.stream, config=config)
        pull = Pull(self._client, stream=what.stream, consumer=what.consumer)
        await self._run(pull, lambda: self._pull(pull, what))

    async def _run(self, source: Pull | Push, wait: Callable[[], Awaitable[Sequence[Msg]]]) -> None:
        running: set[asyncio.Task[None]] = set()
        async with source.open():
            try:
                while True:
                    with propagate_cancellation():
                        await self._take(await wait(), source, running)
                    self._on_answer()
            finally:
                await end(running)

    async def _pull(self, pull: Pull, what: Subscription) -> Sequence[Msg]:
        messages: Sequence[Msg] = ()
        with contextlib.suppress(TimeoutError):
            messages = await pull.next()
        if not messages:
            # Nothing new, or the consumer is gone: an unknown one must be recreated.
            await self._js.consumer_info(what.stream, what.consumer)
        return messages

    async def _take(
        self, messages: Sequence[Msg], source: Pull | Push, running: set[asyncio.Task[None]]
    ) -> None:
        if self._handle_all is None:
            for raw in messages:
                await self._deliver(raw, source)
        elif messages:
            running.add(asyncio.create_task(self._deliver_all(messages, source)))
            if len(running) >= MAX_BATCHES:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in running if task.done()]:
            running.discard(task)
            task.result()

    async def _deliver_all(self, messages: Sequence[Msg], source: Pull | Push) -> None:
        assert self._handle_all is not None
        answers = await self._handle_all([message_of(raw) for raw in messages])
        outcomes: list[tuple[Msg, Settlement]] = []
        try:
            for raw, error in zip(messages, answers, strict=True):
                outcomes.append((raw, await self._outcome(raw, error)))
        finally:
            await source.settle(outcomes)

    async def _deliver(self, raw: Msg, source: Pull | Push) -> None:
        assert self._handle is not None
        error: Exception | None = None
        with trace_of(raw):
            try:
                await self._handle(message_of(raw))
            except Exception as exc:  # noqa: BLE001 - judged below, with its traceback
                error = exc
            await source.settle([(raw, await self._outcome(raw, error))])

    async def _outcome(self, raw: Msg, error: Exception | None) -> Settlement:
        """Decide whether a message is acknowledged or delivered again.

        Store a bad one as dead letter.
        """
        if error is None:
            self._backend.on_success()
            return Settlement.DONE
        if isinstance(error, Unavailable):
            self._backend.on_failure(error)
            return Settlement.RETRY
        if isinstance(error, InvalidRequest):
            return await self._bury(raw, str(error))
        if (left_out := self._lines.take(raw.subject, at_s=time.monotonic())) is not None:
            extra = {"subject": raw.subject, "left_out": left_out}
            logger.error("Failed to handle messages, retrying", extra=extra, exc_info=error)
        if raw.metadata.num_delivered < MAX_DELIVERIES:
            return Settlement.RETRY
        return await self._bury(raw, f"{type(error).__name__}: {error}")

    async def _bury(self, raw: Msg, reason: str) -> Settlement:
        self._on_dead_letter()
        now_s = time.monotonic()
        if (left_out := self._lines.take(raw.subject, at_s=now_s)) is not None:
            extra = {"subject": raw.subject, "reason": reason, "left_out": left_out}
            logger.error("Dead-lettered a message", extra=extra)
        # Beyond these only the count: the stream would drop older ones of the sender for them.
        if self._letters.take(raw.subject, at_s=now_s) is not None:
            await bury(
                self._js,
                raw.data,
                stream=self._what.stream,
                user=self._user,
                subject=raw.subject,
                consumer=self._what.consumer,
                reason=reason,
                traceparent=(raw.headers or {}).get("traceparent", ""),
                timeout_s=PUBLISH_TIMEOUT_S,
            )
        return Settlement.BURIED


def message_of(raw: Msg) -> Message:
    """Return a delivered message with the server's facts about its delivery."""
    metadata = raw.metadata
    return Message(
        subject=raw.subject,
        data=raw.data,
        stream_sequence=metadata.sequence.stream,
        deliveries=metadata.num_delivered,
        received_at=metadata.timestamp,
    )


@contextlib.contextmanager
def trace_of(message: Msg) -> Iterator[None]:
    """Continue the trace whose context the message carries."""
    token = otel_context.attach(telemetry.extract(message.headers))
    try:
        yield
    finally:
        otel_context.detach(token)
