"""Keep messages that no consumer could handle, with the reason, for an operator.

`consumer` buries them in `HAMI_DEAD_LETTERS` for seven days; `hamictl dead-letters` reads them and
sends one again after its cause is repaired (usually a consumer of an older release). The consumer
that buries a letter writes its headers, so they are no proof. The letter's subject, which the
server guards, shows which user buried it, and `permissions.may_return` decides where such a letter
may be sent.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from hamicommon.bus.permissions import may_return
from hamicommon.bus.streams import (
    DEAD_LETTERS_STREAM,
    DEAD_LETTERS_SUBJECT,
    MAX_LETTER_BYTES,
    dead_letter_subject,
)
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.process.shutdown import propagate_cancellation

SUBJECT_HEADER = "Hami-Subject"
REASON_HEADER = "Hami-Reason"
CONSUMER_HEADER = "Hami-Consumer"
_TRACE_HEADER = "traceparent"
_SIZE_HEADER = "Hami-Bytes"
_TRACE = re.compile(r"[0-9a-f]{2}(-[0-9a-f]+){3}")
# A header is one line; 512 characters hold the field and the value of any mistake of ours.
_MAX_REASON_CHARACTERS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that a consumer could not process and gave up."""

    sequence: int
    """Sequence number in the dead-letter stream; `send_again` takes it."""
    at: datetime
    stream: str
    user: str
    """NATS user that stored the letter; empty in letters of older releases."""
    subject: str
    """Subject on which the message came, as that user states it."""
    consumer: str
    """Consumer that gave the message up."""
    reason: str
    data: bytes
    size_bytes: int
    """Size of the whole message; `data` may be only its beginning."""


async def bury(
    js: JetStreamContext,
    data: bytes,
    *,
    stream: str,
    user: str,
    subject: str,
    consumer: str,
    reason: str,
    traceparent: str,
    timeout_s: float,
) -> None:
    """Store a dead letter. Raises: nats.errors.Error or TimeoutError if it may not be stored."""
    headers = {
        SUBJECT_HEADER: subject,
        CONSUMER_HEADER: consumer,
        REASON_HEADER: " ".join(reason.split())[:_MAX_REASON_CHARACTERS],
    }
    if len(data) > MAX_LETTER_BYTES:
        headers[_SIZE_HEADER] = str(len(data))
    if traceparent:
        headers[_TRACE_HEADER] = traceparent
    where = dead_letter_subject(stream, user, subject.rpartition(".")[2])
    await js.publish(where, data[:MAX_LETTER_BYTES], timeout=timeout_s, headers=headers)


class DeadLetters:
    """Access to the dead letters, for a user with rights to the whole bus (the scheduler)."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def count(self) -> int:
        """Return the number of dead letters of all services. Raises: Unavailable."""
        with _translate_errors():
            return (await self._js.stream_info(DEAD_LETTERS_STREAM)).state.messages

    async def latest(self, limit: int) -> list[DeadLetter]:
        """Return the newest dead letters, the newest first. Raises: Unavailable.

        Each letter costs one request to NATS.
        """
        letters: list[DeadLetter] = []
        with _translate_errors():
            state = (await self._js.stream_info(DEAD_LETTERS_STREAM)).state
            for sequence in range(state.last_seq, max(0, state.first_seq - 1), -1):
                if len(letters) >= limit:
                    break
                # One that is missing was sent again, or expired in the meantime.
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    letters.append(_letter(await self._js.get_msg(DEAD_LETTERS_STREAM, sequence)))
        return letters

    async def send_again(self, sequence: int) -> DeadLetter:
        """Publish the letter again on its original subject, and delete it from the dead letters.

        Handlers are idempotent: one that is sent again and fails to go is no harm.
        Raises: NotFound when there is no such letter, InvalidRequest when the user that buried it
        may not have it sent there, Unavailable.
        """
        with _translate_errors():
            try:
                raw = await self._js.get_msg(DEAD_LETTERS_STREAM, sequence)
            except nats.js.errors.NotFoundError as exc:
                raise NotFound(f"there is no dead letter {sequence}") from exc
            letter = _letter(raw)
            _check_return(letter)
            trace = (raw.headers or {}).get(_TRACE_HEADER, "")
            headers = {_TRACE_HEADER: trace} if _TRACE.fullmatch(trace) else None
            await self._js.publish(letter.subject, letter.data, headers=headers)
            await self._js.delete_msg(DEAD_LETTERS_STREAM, sequence)
        return letter


def _check_return(letter: DeadLetter) -> None:
    if not letter.user:
        raise InvalidRequest(
            f"letter {letter.sequence}: an older release stored it without its consumer, so it "
            "can't be redelivered"
        )
    if letter.size_bytes > len(letter.data):
        raise InvalidRequest(
            f"letter {letter.sequence}: only the first {len(letter.data)} of its "
            f"{letter.size_bytes} bytes are kept, so it can't be redelivered"
        )
    if not may_return(letter.user, letter.stream, letter.subject):
        raise InvalidRequest(
            f"letter {letter.sequence}: user {letter.user} may not redeliver messages of "
            f"{letter.stream} on {letter.subject!r}"
        )


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        with propagate_cancellation():
            yield
    except (nats.errors.Error, OSError, TimeoutError) as exc:
        raise Unavailable(f"NATS: dead letters: {exc or type(exc).__name__}") from exc


def _letter(raw: RawStreamMsg) -> DeadLetter:
    headers = raw.headers or {}
    assert raw.seq is not None
    assert raw.time is not None
    assert raw.subject is not None
    stream, user, *_ = (*raw.subject.removeprefix(f"{DEAD_LETTERS_SUBJECT}.").split("."), "")
    data, size = raw.data or b"", headers.get(_SIZE_HEADER, "")
    return DeadLetter(
        sequence=raw.seq,
        at=raw.time,
        stream=stream,
        user=user,
        subject=headers.get(SUBJECT_HEADER, ""),
        consumer=headers.get(CONSUMER_HEADER, ""),
        reason=headers.get(REASON_HEADER, ""),
        data=data,
        size_bytes=max(len(data), int(size) if size.isdecimal() and len(size) < 10 else 0),
    )
