"""Create and update the JetStream streams with their limits; done by the scheduler.

No other service may do so: the server's own subjects reach beyond a login's rights (`deliveries`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, NotFoundError

from hamicommon import events
from hamicommon.bus.deliveries import DELIVERIES, ensure
from hamicommon.process.backoff import Backoff
from hamicommon.process.shutdown import end, propagate_cancellation

logger = logging.getLogger(__name__)

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_INTERVAL_S = 20.0
"""Time within which a deleted stream is created again."""
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_MIB = 1024 * 1024
# The server drops a message whose id it saw within this window.
_DUPLICATE_WINDOW_S = 120.0

DEAD_LETTERS_STREAM = "HAMI_DEAD_LETTERS"
DEAD_LETTERS_SUBJECT = "hami.dead.v1"


LETTERS_OF_A_SENDER = 256
"""Number of dead letters kept per sender and stream, so that none pushes out another's."""
MAX_LETTER_BYTES = 64 * 1024
"""Maximum bytes of a dead-lettered message that are kept.

Four streams' letters of one node fill a quarter of the dead-letter stream at most.
"""


def dead_letter_subject(stream: str, user: str, sender: str) -> str:
    """Return the subject for dead letters of messages of `stream` that `user` could not handle.

    The server lets a user publish under its own name only, so this shows which user buried a
    letter. `sender` is the last token of the message's subject: the node, if it came from one.
    """
    return f"{DEAD_LETTERS_SUBJECT}.{stream}.{user}.{sender}"


def _stream(
    name: str, subject: str, *, max_age_s: float, max_bytes: int, per_subject: int = -1
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=[subject],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=max_age_s,
        max_bytes=max_bytes,
        max_msgs_per_subject=per_subject,
        duplicate_window=_DUPLICATE_WINDOW_S,
    )


STREAMS = (
    # Readers need only the last inventory of each node.
    _stream(
        events.INVENTORY_STREAM,
        "hami.inventory.v1.*",
        max_age_s=_DAY_S,
        max_bytes=256 * _MIB,
        per_subject=1,
    ),
    # An agent that was unavailable longer than this asks for the snapshot.
    _stream(events.GRANTS_STREAM, "hami.grants.v1.*", max_age_s=_HOUR_S, max_bytes=256 * _MIB),
    _stream(events.REPORTS_STREAM, "hami.reports.v1.*", max_age_s=_DAY_S, max_bytes=256 * _MIB),
    _stream(events.USAGE_STREAM, "hami.usage.v1.*", max_age_s=_HOUR_S, max_bytes=512 * _MIB),
    _stream(events.LIMITS_STREAM, "hami.limits.v1.*", max_age_s=_DAY_S, max_bytes=64 * _MIB),
    _stream(events.EVENTS_STREAM, "hami.events.v1.>", max_age_s=_DAY_S, max_bytes=512 * _MIB),
    # The last state of each namespace, however old: what did not change is not published again.
    _stream(
        events.LEDGER_STREAM, "hami.ledger.v1.>", max_age_s=0.0, max_bytes=64 * _MIB, per_subject=1
    ),
    _stream(
        DEAD_LETTERS_STREAM,
        f"{DEAD_LETTERS_SUBJECT}.>",
        max_age_s=7 * _DAY_S,
        max_bytes=256 * _MIB,
        per_subject=LETTERS_OF_A_SENDER,
    ),
)


class StreamKeeper:
    """Create and update streams and deliveries, and check them repeatedly.

    Retry while one can't be created, or is deleted.
    """

    def __init__(
        self, js: JetStreamContext, *, replicas: int = 1, is_connected: Callable[[], bool]
    ) -> None:
        """`replicas`: number of the cluster's servers that store each stream."""
        self._js = js
        self._is_connected = is_connected
        self._replicas = replicas
        self._again: asyncio.Task[None] | None = None
        self.problems: dict[str, str] = {}
        """Stream, or consumer of a delivery -> its problem. It is used as it is; the others are
        unaffected."""

    async def check(self) -> None:
        """Create missing streams and update changed ones, now and every minute.

        Failures are retried sooner.
        """
        await self.close()
        await self._check()
        self._again = asyncio.create_task(self._check_again(), name="nats-streams")

    async def close(self) -> None:
        """Stop checking."""
        if self._again is not None:
            await end([self._again])

    async def _check_again(self) -> None:
        backoff = Backoff(_MIN_RETRY_S, _MAX_RETRY_S)
        while True:
            if not self.problems:
                backoff.reset()
            await asyncio.sleep(backoff.next_s() if self.problems else _INTERVAL_S)
            if self._is_connected():
                await self._check()

    async def _check(self) -> None:
        problems: dict[str, str] = {}

        async def attempt(name: str, making: Awaitable[None]) -> None:
            try:
                with propagate_cancellation():
                    await making
            except (nats.errors.Error, OSError, TimeoutError) as exc:
                reason = getattr(exc, "description", None) or str(exc) or type(exc).__name__
                problems[name] = reason

        for config in STREAMS:
            assert config.name is not None
            replicated = replace(config, num_replicas=self._replicas)
            await attempt(config.name, _ensure(self._js, replicated))
        for delivery in DELIVERIES:
            await attempt(delivery.consumer, ensure(self._js, delivery))
            if delivery.stream in problems:  # one line about it is enough
                problems.pop(delivery.consumer, None)
        if problems != self.problems:
            for name, reason in problems.items():
                logger.error(
                    "Found a stream that differs from its configuration",
                    extra={"stream": name, "error": reason},
                )
        self.problems = problems


async def _ensure(js: JetStreamContext, config: StreamConfig) -> None:
    try:
        await js.add_stream(config)
    except BadRequestError as exc:
        # It exists with other limits (those above are the ones that count), or can't be.
        try:
            await js.update_stream(config)
        except NotFoundError:
            raise exc from None
