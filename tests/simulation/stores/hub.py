"""The bus's server: streams that remember, consumers, who follows and who answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hamicommon.bus.client import Deliver, Handler, Message, Responder, Subscription

from tests.simulation.fake_time import wall_clock

DUPLICATE_WINDOW_S = 120.0


class Client(Protocol):
    """A process's end."""

    def hear(self, handle: Handler, message: Message) -> None:
        """A followed message is on its way to it."""
        ...

    def on_request(
        self, respond: Responder, subject: str, data: bytes, answer: asyncio.Future[bytes]
    ) -> None:
        """A request is on its way to it."""
        ...


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that a consumer has not acknowledged."""

    message: Message
    due: float
    deliveries: int = 0


@dataclass(slots=True)
class Queue:
    """A consumer at the server."""

    subject: str
    waiting: list[Delivery] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class Hub:
    """The server."""

    def __init__(self) -> None:
        self.away_until = 0.0
        self.dead_letters: list[str] = []
        self._sequence = 0
        self._last: dict[str, Message] = {}
        self._ids: dict[str, float] = {}
        self._queues: dict[str, Queue] = {}
        self._followers: dict[Client, list[tuple[Sequence[str], Handler]]] = {}
        self._responders: dict[str, list[tuple[Client, Responder]]] = {}

    def store(self, sender: Client | None, subject: str, data: bytes, message_id: str) -> None:
        """Takes a message in; a repeated id is dropped by the stream, not by the followers."""
        now = asyncio.get_running_loop().time()
        self._sequence += 1
        message = Message(
            subject=subject,
            data=data,
            stream_sequence=self._sequence,
            deliveries=1,
            received_at=wall_clock(),
        )
        self.spread(sender, message)
        if self._ids.get(message_id, -DUPLICATE_WINDOW_S) > now - DUPLICATE_WINDOW_S:
            return
        self._ids[message_id] = now
        self._last[subject] = message
        for queue in self._queues.values():
            if _matches(queue.subject, subject):
                queue.waiting.append(Delivery(message, now))
                queue.arrived.set()

    def spread(self, sender: Client | None, message: Message) -> None:
        """To who follows its subject now."""
        for follower, followed in list(self._followers.items()):
            for patterns, handle in followed:
                if follower is not sender and any(_matches(p, message.subject) for p in patterns):
                    follower.hear(handle, message)

    def queue(self, what: Subscription) -> Queue:
        """The consumer of that name; one that did not exist starts where its options name."""
        queue = self._queues.get(what.consumer)
        if queue is None:
            queue = self._queues[what.consumer] = Queue(what.subject)
            if what.deliver is Deliver.LAST_PER_SUBJECT:
                last = [m for m in self._last.values() if _matches(what.subject, m.subject)]
                queue.waiting = [Delivery(message, 0.0) for message in last]
        return queue

    def forget(self, consumer: str) -> None:
        """An ephemeral consumer whose process died."""
        self._queues.pop(consumer, None)

    def follow(self, connection: Client, subjects: Sequence[str], handle: Handler) -> None:
        """Core NATS."""
        self._followers.setdefault(connection, []).append((subjects, handle))

    def serve(self, connection: Client, subject: str, respond: Responder) -> None:
        """Core NATS."""
        self._responders.setdefault(subject, []).append((connection, respond))

    def leave(self, connection: Client) -> None:
        """The process died."""
        self._followers.pop(connection, None)
        for served in self._responders.values():
            served[:] = [pair for pair in served if pair[0] is not connection]

    def responders(self, subject: str) -> list[tuple[Client, Responder]]:
        """Return the clients that serve the subject."""
        return [
            pair
            for pattern, served in self._responders.items()
            if _matches(pattern, subject)
            for pair in served
        ]


def _matches(pattern: str, subject: str) -> bool:
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(given) >= len(wanted) and given[: len(wanted) - 1] == wanted[:-1]
    return len(wanted) == len(given) and all(
        a in ("*", b) for a, b in zip(wanted, given, strict=True)
    )
