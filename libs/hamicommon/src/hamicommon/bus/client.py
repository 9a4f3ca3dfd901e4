"""The bus as the services see it: publish, consume, ask, answer; NATS stays behind this file.

Delivery is at least once: handlers are idempotent by the id in their payload. A message that can't
be read (`InvalidRequest`) or that failed `MAX_DELIVERIES` times goes to the dead letters with its
reason. The trace context travels in the headers. While the server is away `publish` raises
Unavailable at once, `connected` is False, and consumers go on by themselves when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from opentelemetry import context as otel_context
from pydantic import BaseModel

from hamicommon import telemetry
from hamicommon.bus.permissions import inbox_prefix
from hamicommon.bus.streams import DEAD_LETTERS_SUBJECT, ensure_streams
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.settings import NatsSettings

logger = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 2.0
# A pull request waits this long at the server. One that was pending when the server went away is
# noticed only when this is over, so it bounds the delay after a reconnect too.
FETCH_WAIT_S = 2.0
FETCH_BATCH = 64
ACK_WAIT_S = 30.0
RETRY_DELAY_S = 1.0
MAX_DELIVERIES = 10
_RECONNECT_WAIT_S = 1


class NobodyAnswers(Unavailable):
    """The bus is healthy and nobody serves the subject."""


class Deliver(StrEnum):
    """Where a consumer starts that did not exist before."""

    ALL = "all"
    NEW = "new"
    LAST_PER_SUBJECT = "last_per_subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One delivered message."""

    subject: str
    data: bytes
    stream_sequence: int
    deliveries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What to consume; the same `consumer` name shares the work among replicas.

    `ephemeral` consumers are forgotten by the server when nobody pulls for a while; then the next
    one starts again at `deliver`.
    """

    stream: str
    subject: str
    consumer: str
    deliver: Deliver = Deliver.ALL
    ephemeral: bool = False


Handler = Callable[[Message], Awaitable[None]]
Responder = Callable[[str, bytes], Awaitable[BaseModel]]


class Bus:
    """One connection to NATS."""

    def __init__(self, client: Client, js: JetStreamContext) -> None:
        self._client = client
        self._js = js
        self._up_since: float | None = None
        self._was_up = asyncio.Event()
        self.dead_letters = 0

    @property
    def connected(self) -> bool:
        """True while the connection is healthy."""
        return bool(self._client.is_connected)

    @property
    def connected_for_s(self) -> float:
        """Seconds since the connection was last (re)made; 0 while it is away."""
        if not self.connected or self._up_since is None:
            return 0.0
        return time.monotonic() - self._up_since

    def _mark_up(self) -> None:
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
        """Stores the payload in its stream; the server drops a repeated `message_id`.

        Raises: Unavailable when it is not known to be stored.
        """
        if not self.connected:
            raise Unavailable("NATS is not connected")
        headers = telemetry.inject({"Nats-Msg-Id": message_id})
        data = payload.model_dump_json().encode()
        try:
            await self._js.publish(subject, data, timeout=timeout_s, headers=headers)
        except (nats.errors.Error, OSError, TimeoutError) as exc:
            raise Unavailable(f"NATS: publish on {subject}: {exc or type(exc).__name__}") from exc

    async def request(
        self, subject: str, payload: BaseModel, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> bytes:
        """Asks and returns the reply's body.

        Raises: NobodyAnswers when nobody serves the subject, Unavailable when the bus is away or
        the answer takes too long.
        """
        if not self.connected:
            raise Unavailable("NATS is not connected")
        data = payload.model_dump_json().encode()
        try:
            reply = await self._client.request(
                subject, data, timeout=timeout_s, headers=telemetry.inject()
            )
        except nats.errors.NoRespondersError as exc:
            raise NobodyAnswers(f"NATS: nobody serves {subject}") from exc
        except (nats.errors.Error, OSError, TimeoutError) as exc:
            raise Unavailable(f"NATS: request {subject}: {exc or type(exc).__name__}") from exc
        return bytes(reply.data)

    async def serve(self, subject: str, queue: str, respond: Responder) -> None:
        """Answers requests on `subject` until cancelled; replicas in one `queue` share them."""

        async def on_message(message: Msg) -> None:
            with _trace_of(message):
                try:
                    reply = await respond(message.subject, message.data)
                    await message.respond(reply.model_dump_json().encode())
                except (InvalidRequest, Unavailable) as exc:
                    logger.warning("request not answered", extra={"error": str(exc)})
                except (nats.errors.Error, OSError) as exc:
                    logger.warning("reply not sent", extra={"error": str(exc)})

        # The client renews a subscription on every reconnect, but can't make one before the first.
        await self._was_up.wait()
        subscription = await self._client.subscribe(subject, queue=queue, cb=on_message)
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def consume(self, what: Subscription, handle: Handler) -> None:
        """Calls `handle` for every message, in order, until cancelled."""
        while True:
            try:
                await self._consume_once(what, handle)
            except (nats.errors.Error, OSError, TimeoutError) as exc:
                _heed_cancellation()
                logger.warning("consumer broken", extra={"stream": what.stream, "error": str(exc)})
                await asyncio.sleep(RETRY_DELAY_S)

    async def _consume_once(self, what: Subscription, handle: Handler) -> None:
        config = ConsumerConfig(
            name=what.consumer,
            durable_name=None if what.ephemeral else what.consumer,
            filter_subject=what.subject,
            deliver_policy=DeliverPolicy(what.deliver.value),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_ack_pending=FETCH_BATCH * 4,
            inactive_threshold=60.0 if what.ephemeral else None,
        )
        await self._js.add_consumer(what.stream, config=config)
        pull = await self._js.pull_subscribe_bind(consumer=what.consumer, stream=what.stream)
        try:
            while True:
                _heed_cancellation()
                try:
                    messages = await pull.fetch(FETCH_BATCH, timeout=FETCH_WAIT_S)
                except TimeoutError:
                    # Nothing new, or the consumer is gone: an unknown one must be made again.
                    await self._js.consumer_info(what.stream, what.consumer)
                    continue
                for message in messages:
                    await self._deliver(what, message, handle)
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await pull.unsubscribe()

    async def _deliver(self, what: Subscription, raw: Msg, handle: Handler) -> None:
        metadata = raw.metadata
        message = Message(
            subject=raw.subject,
            data=raw.data,
            stream_sequence=metadata.sequence.stream,
            deliveries=metadata.num_delivered,
        )
        with _trace_of(raw):
            try:
                await handle(message)
            except Unavailable as exc:
                logger.warning("handler must wait", extra={"error": str(exc)})
                await raw.nak(delay=RETRY_DELAY_S)
                return
            except InvalidRequest as exc:
                await self._bury(what, raw, str(exc))
                return
            except Exception as exc:
                logger.exception("handler failed", extra={"subject": raw.subject})
                if message.deliveries < MAX_DELIVERIES:
                    await raw.nak(delay=RETRY_DELAY_S)
                else:
                    await self._bury(what, raw, f"{type(exc).__name__}: {exc}")
                return
        await raw.ack()

    async def _bury(self, what: Subscription, raw: Msg, reason: str) -> None:
        logger.error("message dead-lettered", extra={"subject": raw.subject, "reason": reason})
        self.dead_letters += 1
        await self._js.publish(
            f"{DEAD_LETTERS_SUBJECT}.{what.stream}",
            raw.data,
            timeout=PUBLISH_TIMEOUT_S,
            headers={"Hami-Subject": raw.subject, "Hami-Reason": reason.replace("\n", " ")[:512]},
        )
        await raw.term()


def _heed_cancellation() -> None:
    """Ends a cancelled task whose cancellation was swallowed on the way here.

    The client waits with `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
    comes in the same turn of the loop as the reply or the time-out.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


@contextlib.contextmanager
def _trace_of(message: Msg) -> Iterator[None]:
    token = otel_context.attach(telemetry.extract(message.headers))
    try:
        yield
    finally:
        otel_context.detach(token)


@asynccontextmanager
async def open_bus(
    settings: NatsSettings, name: str, *, owns_streams: bool = False
) -> AsyncIterator[Bus]:
    """Connects as `name`, in the background while the server is away.

    `owns_streams` makes the streams on every connect; agents have no right to.
    """
    client = Client()
    js = client.jetstream(timeout=PUBLISH_TIMEOUT_S)
    bus = Bus(client, js)

    async def on_connect() -> None:
        if owns_streams:
            await ensure_streams(js)
        bus._mark_up()
        logger.info("NATS connected", extra={"url": settings.url})

    async def on_error(exc: Exception) -> None:
        logger.warning("NATS error", extra={"error": str(exc) or type(exc).__name__})

    async def connect() -> None:
        while not client.is_connected:
            try:
                await client.connect(
                    servers=settings.url.split(","),
                    name=name,
                    user=settings.user or None,
                    password=settings.password.get_secret_value() or None,
                    tls=_tls(settings),
                    inbox_prefix=inbox_prefix(settings.user or name).encode(),
                    connect_timeout=int(max(1, settings.connect_timeout_s)),
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_WAIT_S,
                    allow_reconnect=True,
                    error_cb=on_error,
                    reconnected_cb=on_connect,
                )
                await on_connect()
            except (nats.errors.Error, OSError, TimeoutError) as exc:
                logger.warning("NATS away", extra={"error": str(exc) or type(exc).__name__})
                await asyncio.sleep(RETRY_DELAY_S)

    connecting = asyncio.create_task(connect(), name="nats-connect")
    # Most starts find the server there; then nobody meets an unconnected bus.
    await asyncio.wait([connecting], timeout=settings.connect_timeout_s)
    try:
        yield bus
    finally:
        connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await connecting
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()


def _tls(settings: NatsSettings) -> ssl.SSLContext | None:
    if settings.tls_ca_file is None:
        return None
    return ssl.create_default_context(cafile=str(settings.tls_ca_file))
