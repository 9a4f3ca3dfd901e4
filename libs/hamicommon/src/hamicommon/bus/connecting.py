"""Connect to NATS in the background, and connect again whenever the connection is lost."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats.errors
from nats.aio.client import Client

from hamicommon.bus.client import Bus
from hamicommon.bus.consumer import PUBLISH_TIMEOUT_S
from hamicommon.bus.permissions import inbox_prefix
from hamicommon.bus.pull import RETRY_DELAY_S
from hamicommon.process.outages import Outage
from hamicommon.process.shutdown import end, propagate_cancellation
from hamicommon.process.trusted_authorities import trusted_until
from hamicommon.settings import NatsSettings

logger = logging.getLogger(__name__)

_RECONNECT_WAIT_S = 1
# A server that is gone without notice (a lost route, a paused machine) counts as away after three
# of these; until then every bind and every Allocate waits its full time for it.
_PING_INTERVAL_S = 2
_PINGS_UNANSWERED = 2
_LOST = (OSError, nats.errors.UnexpectedEOF, nats.errors.StaleConnectionError)
"""Errors that mean that an established connection was lost."""


@asynccontextmanager
async def open_bus(
    settings: NatsSettings, name: str, *, owns_streams: bool = False, echo: bool = True
) -> AsyncIterator[Bus]:
    """Connect as user `name`, in the background while the server is unavailable.

    `owns_streams` makes the streams on every connect; agents have no right to. Without `echo` the
    server keeps this connection's messages from its own `follow` and `serve` (not from `consume`).
    """
    client = Client()
    js = client.jetstream(timeout=PUBLISH_TIMEOUT_S)
    user = settings.user or name
    bus = Bus(client, js, user, stream_replicas=settings.stream_replicas)

    async def on_connect() -> None:
        if owns_streams:
            await bus.streams.check()
        bus.mark_up()
        if not outage.on_success():
            logger.info("Connected to NATS", extra={"url": settings.url})

    async def on_error(exc: Exception) -> None:
        # Of an outage there is one for each try; the others are about one message or right.
        if isinstance(exc, _LOST) or not client.is_connected:
            outage.on_failure(exc)
        else:
            logger.warning(
                "Received an error from NATS", extra={"error": str(exc) or type(exc).__name__}
            )

    outage = Outage(
        logger,
        failed="Failed to reach NATS, retrying",
        again="Connected to NATS",
        about={"url": settings.url},
    )

    async def connect() -> None:
        begun = False
        while not bus.was_up:
            try:
                with propagate_cancellation():
                    if client.is_connected:
                        await on_connect()
                    elif client.is_closed or not begun:
                        await _begin(
                            client,
                            settings,
                            bus,
                            name,
                            no_echo=not echo,
                            on_error=on_error,
                            on_connect=on_connect,
                        )
                        begun = True
                    else:
                        # The server closed the connection before its first answer (it refused the
                        # login, or could not check it). The client retries by itself, or is closed
                        # soon; a second call during its own attempts would result in a connection
                        # without the subscriptions.
                        await asyncio.sleep(RETRY_DELAY_S)
            except (nats.errors.Error, OSError, TimeoutError) as exc:
                outage.on_failure(exc)
                await asyncio.sleep(RETRY_DELAY_S)

    connecting = asyncio.create_task(connect(), name="nats-connect")
    # The server is usually available at the start; then no caller gets an unconnected bus.
    await asyncio.wait([connecting], timeout=settings.connect_timeout_s)
    try:
        yield bus
    finally:
        await end([connecting])
        await bus.close()


async def _begin(
    client: Client,
    settings: NatsSettings,
    bus: Bus,
    name: str,
    *,
    no_echo: bool,
    on_error: Callable[[Exception], Awaitable[None]],
    on_connect: Callable[[], Awaitable[None]],
) -> None:
    await client.connect(
        servers=settings.url.split(","),
        name=name,
        user=settings.user or None,
        password=settings.password.get_secret_value() or None,
        token=_token(settings.token_file),
        tls=_tls(settings, bus),
        inbox_prefix=inbox_prefix(settings.user or name).encode(),
        connect_timeout=int(max(1, settings.connect_timeout_s)),
        max_reconnect_attempts=-1,
        reconnect_time_wait=_RECONNECT_WAIT_S,
        ping_interval=_PING_INTERVAL_S,
        max_outstanding_pings=_PINGS_UNANSWERED,
        allow_reconnect=True,
        no_echo=no_echo,
        error_cb=on_error,
        reconnected_cb=on_connect,
    )


def _token(path: Path | None) -> Callable[[], str] | None:
    """Return the token from its file, which is read at each login because the token is renewed."""
    return None if path is None else lambda: path.read_text().strip()


def _tls(settings: NatsSettings, bus: Bus) -> ssl.SSLContext | None:
    if settings.tls_ca_file is None:
        return None
    context = ssl.create_default_context(cafile=str(settings.tls_ca_file))
    bus.trusted_until = trusted_until(context)
    return context
