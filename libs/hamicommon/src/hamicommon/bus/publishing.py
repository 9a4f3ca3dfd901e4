"""Many messages stored in JetStream with one flush: what the outbox's relay sends.

A message that is published by itself waits for its own answer with its own timer; here all answers
come back on one subscription and are waited for together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.js import JetStreamContext

from hamicommon.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One of many messages; the server drops a repeated `message_id`."""

    subject: str
    data: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)


async def publish_all(
    js: JetStreamContext, messages: Sequence[Outgoing], *, timeout_s: float
) -> list[Unavailable | None]:
    """Stores the messages; for each None, or why it is not known to be stored."""
    answers = [await _begin(js, message) for message in messages]
    waiting = [answer for answer in answers if isinstance(answer, asyncio.Future)]
    if waiting:
        await asyncio.wait(waiting, timeout=timeout_s)
    return [
        answer if isinstance(answer, Unavailable) else _outcome(message, answer)
        for message, answer in zip(messages, answers, strict=True)
    ]


async def _begin(js: JetStreamContext, message: Outgoing) -> asyncio.Future[Any] | Unavailable:
    headers = {**message.headers, "Nats-Msg-Id": message.message_id}
    try:
        answer: asyncio.Future[Any] = await js.publish_async(
            message.subject, message.data, headers=headers
        )
    except (nats.errors.Error, OSError) as exc:
        return _not_stored(message, exc)
    return answer


def _outcome(message: Outgoing, answer: asyncio.Future[Any]) -> Unavailable | None:
    if not answer.done():
        answer.cancel()
        return _not_stored(message, TimeoutError("no answer in time"))
    error = answer.exception()
    return None if error is None else _not_stored(message, error)


def _not_stored(message: Outgoing, error: BaseException) -> Unavailable:
    return Unavailable(f"NATS: publish on {message.subject}: {error or type(error).__name__}")
