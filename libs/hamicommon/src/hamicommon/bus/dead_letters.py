"""Messages that no consumer could handle, kept with the reason for who looks after the system.

`consuming` buries them in `HAMI_DEAD_LETTERS` for seven days; `hamictl dead-letters` reads them and
sends one again once its cause is mended (mostly a consumer of an older release).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import RawStreamMsg

from hamicommon.bus.streams import DEAD_LETTERS_STREAM, DEAD_LETTERS_SUBJECT
from hamicommon.cancellation import heeding
from hamicommon.errors import NotFound, Unavailable

SUBJECT_HEADER = "Hami-Subject"
REASON_HEADER = "Hami-Reason"
CONSUMER_HEADER = "Hami-Consumer"
_TRACE_HEADER = "traceparent"
# A header is one line; 512 characters tell the field and the value of any mistake of ours.
_REASON_MOST = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that was given up."""

    sequence: int
    """Names it, for sending it again."""
    at: datetime
    stream: str
    subject: str
    """Where it came on."""
    consumer: str
    """Who gave it up."""
    reason: str
    data: bytes


async def bury(
    js: JetStreamContext,
    data: bytes,
    *,
    stream: str,
    subject: str,
    consumer: str,
    reason: str,
    traceparent: str,
    timeout_s: float,
) -> None:
    """Stores a letter. Raises: nats.errors.Error or TimeoutError when it is not known to be."""
    headers = {
        SUBJECT_HEADER: subject,
        CONSUMER_HEADER: consumer,
        REASON_HEADER: " ".join(reason.split())[:_REASON_MOST],
    }
    if traceparent:
        headers[_TRACE_HEADER] = traceparent
    await js.publish(f"{DEAD_LETTERS_SUBJECT}.{stream}", data, timeout=timeout_s, headers=headers)


class DeadLetters:
    """The letters, for who has the right to the whole bus (the scheduler)."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js

    async def kept(self) -> int:
        """How many there are, of all services. Raises: Unavailable."""
        with _translated():
            return (await self._js.stream_info(DEAD_LETTERS_STREAM)).state.messages

    async def latest(self, limit: int) -> list[DeadLetter]:
        """The latest letters, newest first; one request each. Raises: Unavailable."""
        letters: list[DeadLetter] = []
        with _translated():
            state = (await self._js.stream_info(DEAD_LETTERS_STREAM)).state
            for sequence in range(state.last_seq, max(0, state.first_seq - 1), -1):
                if len(letters) >= limit:
                    break
                # One that is missing was sent again, or went meanwhile.
                with contextlib.suppress(nats.js.errors.NotFoundError):
                    letters.append(_letter(await self._js.get_msg(DEAD_LETTERS_STREAM, sequence)))
        return letters

    async def send_again(self, sequence: int) -> DeadLetter:
        """Publishes the letter where it came from, and takes it out of the dead letters.

        Handlers are idempotent: one that is sent again and fails to go is no harm.
        Raises: NotFound when there is no such letter, Unavailable.
        """
        with _translated():
            try:
                raw = await self._js.get_msg(DEAD_LETTERS_STREAM, sequence)
            except nats.js.errors.NotFoundError as exc:
                raise NotFound(f"there is no dead letter {sequence}") from exc
            letter = _letter(raw)
            trace = (raw.headers or {}).get(_TRACE_HEADER, "")
            headers = {_TRACE_HEADER: trace} if trace else None
            await self._js.publish(letter.subject, letter.data, headers=headers)
            await self._js.delete_msg(DEAD_LETTERS_STREAM, sequence)
        return letter


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        with heeding():
            yield
    except (nats.errors.Error, OSError, TimeoutError) as exc:
        raise Unavailable(f"NATS: dead letters: {exc or type(exc).__name__}") from exc


def _letter(raw: RawStreamMsg) -> DeadLetter:
    headers = raw.headers or {}
    assert raw.seq is not None
    assert raw.time is not None
    assert raw.subject is not None
    return DeadLetter(
        sequence=raw.seq,
        at=raw.time,
        stream=raw.subject.rpartition(".")[2],
        subject=headers.get(SUBJECT_HEADER, ""),
        consumer=headers.get(CONSUMER_HEADER, ""),
        reason=headers.get(REASON_HEADER, ""),
        data=raw.data or b"",
    )
