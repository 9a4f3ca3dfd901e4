"""Consumers whose messages the scheduler makes the server push to the metrics service.

The server sends the answer to an acknowledgement, or to a JetStream request, to the reply subject
that the message names, without checking the sender's right to that subject: an answer without
content on `$JS.API.STREAM.DELETE.<stream>` deletes the stream. Therefore only the scheduler has
rights below `$JS`. It makes these consumers, which push to one fixed subject. The service
subscribes to that one, and reports the result of each message on another (`Acknowledgements`),
which the scheduler passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy
from nats.js.errors import NotFoundError
from pydantic import Field

from hamicommon import events
from hamicommon.bus.pull import (
    ACK_WAIT_S,
    ACKNOWLEDGEMENTS,
    FETCH_BATCH,
    FETCH_WAIT_S,
    MAX_ACK_PENDING,
    Settlement,
)
from hamicommon.bus.reader import read
from hamicommon.errors import InvalidRequest

MAX_SETTLED = 1000
MAX_IDLE_S = 60.0
"""Time without a message after which a reader subscribes again."""
SETTLED_SUBJECTS = "hami.settled.v1.*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A push consumer; its readers share the messages."""

    stream: str
    subject: str
    consumer: str
    replaces: str
    """Durable consumer of the previous release; this one continues where that one ended."""

    @property
    def deliver_subject(self) -> str:
        """Subject on which the messages are pushed, to the queue group named as the consumer."""
        return f"hami.deliver.v1.{self.consumer}"

    @property
    def settled_subject(self) -> str:
        """Subject on which readers report which messages they have handled."""
        return f"hami.settled.v1.{self.consumer}"


USAGE = Delivery(
    stream=events.USAGE_STREAM,
    subject="hami.usage.v1.*",
    consumer="metrics-usage",
    replaces="hami-metrics-usage",
)
REFUSALS = Delivery(
    stream=events.EVENTS_STREAM,
    subject=events.ADMISSION_REFUSED_SUBJECT,
    consumer="metrics-refusals",
    replaces="hami-metrics-refusals",
)
DELIVERIES = (USAGE, REFUSALS)


class Acknowledgements(events.Payload):
    """Report of a reader: reply subjects of messages, and whether each one was handled."""

    messages: tuple[tuple[str, Settlement], ...] = Field(max_length=MAX_SETTLED)


def acknowledgements(subject: str, data: bytes) -> list[tuple[str, bytes]]:
    """Return the subject and the body of each acknowledgement that a report asks for.

    Raises: InvalidRequest when it settles a message of another consumer.
    """
    found = [each for each in DELIVERIES if each.settled_subject == subject]
    if not found:
        raise InvalidRequest(f"{subject} settles no consumer")
    own = re.escape(f"$JS.ACK.{found[0].stream}.{found[0].consumer}")
    settled = read(Acknowledgements, data, "settled messages").messages
    for reply, _ in settled:
        if not re.fullmatch(rf"{own}(\.[0-9]{{1,20}}){{5}}", reply):
            raise InvalidRequest(f"{subject} settles no message of {reply!r}")
    return [(reply, ACKNOWLEDGEMENTS[outcome]) for reply, outcome in settled]


async def ensure(js: JetStreamContext, delivery: Delivery) -> None:
    """Create or update the consumer, and delete the one that it replaces.

    It starts after the last message up to which the replaced one has acknowledged all. A replaced
    one stays until the next call while a client pulls from it: deleted, it would be recreated from
    the start.

    Raises: nats.errors.Error, OSError, TimeoutError.
    """
    known = await _info(js, delivery.stream, delivery.consumer)
    before = await _info(js, delivery.stream, delivery.replaces)
    config = ConsumerConfig(
        name=delivery.consumer,
        durable_name=delivery.consumer,
        filter_subject=delivery.subject,
        deliver_subject=delivery.deliver_subject,
        deliver_group=delivery.consumer,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        max_ack_pending=MAX_ACK_PENDING,
    )
    if known is not None:
        policy, start = known.config.deliver_policy, known.config.opt_start_seq
        config = replace(config, deliver_policy=policy, opt_start_seq=start)
    elif before is not None:
        floor = 0 if before.ack_floor is None else before.ack_floor.stream_seq
        policy = DeliverPolicy.BY_START_SEQUENCE
        config = replace(config, deliver_policy=policy, opt_start_seq=floor + 1)
    await js.add_consumer(delivery.stream, config)
    if before is not None and not before.num_waiting:
        with contextlib.suppress(NotFoundError):  # another replica did
            await js.delete_consumer(delivery.stream, delivery.replaces)


async def _info(js: JetStreamContext, stream: str, consumer: str) -> ConsumerInfo | None:
    try:
        found: ConsumerInfo = await js.consumer_info(stream, consumer)
        return found
    except NotFoundError:
        return None


class Push:
    """One reader of a delivery."""

    def __init__(self, client: Client, delivery: Delivery) -> None:
        self._client = client
        self._delivery = delivery
        self._subscription: Subscription | None = None
        self._quiet_since_s = 0.0
        self._came: list[Msg] = []
        self._woken = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Push]:
        """Subscribe; at the end, messages that `next` has not returned go to the other readers."""
        await self._subscribe()
        try:
            yield self
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._unsubscribe()
                await self.settle([(message, Settlement.UNREAD) for message in self._came])

    async def next(self) -> list[Msg]:
        """Return the messages that have come; an empty list when none came for a while."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCH_WAIT_S):
                await self._woken.wait()
        if not self._came and time.monotonic() - self._quiet_since_s > MAX_IDLE_S:
            # One that was refused stays so when the server reads a new configuration.
            await self._unsubscribe()
            await self._subscribe()
        messages, self._came = self._came[:FETCH_BATCH], self._came[FETCH_BATCH:]
        if not self._came:
            self._woken.clear()
        return messages

    async def _subscribe(self) -> None:
        self._quiet_since_s = time.monotonic()
        self._subscription = await self._client.subscribe(
            self._delivery.deliver_subject, queue=self._delivery.consumer, cb=self._on_message
        )

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    async def settle(self, outcomes: Sequence[tuple[Msg, Settlement]]) -> None:
        """Report which messages were handled; a lost report makes the server deliver them again."""
        for first in range(0, len(outcomes), MAX_SETTLED):
            some = outcomes[first : first + MAX_SETTLED]
            body = Acknowledgements(
                messages=tuple((message.reply, outcome) for message, outcome in some)
            )
            await self._client.publish(
                self._delivery.settled_subject, body.model_dump_json().encode()
            )

    async def _on_message(self, message: Msg) -> None:
        self._came.append(message)
        self._quiet_since_s = time.monotonic()
        self._woken.set()
