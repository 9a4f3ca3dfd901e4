"""A reader of a feed notices missed messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import nats.errors
import pytest
from hamicommon.bus.feeds import FeedKind, FeedRequest, read_feed
from hamicommon.errors import Unavailable
from nats.aio.msg import Msg


def message(sequence: int) -> Msg:
    reply = f"$JS.ACK.HAMI_LEDGER.x.1.{sequence}.{sequence}.1795968691852064022.0"
    return Msg(cast("Any", None), subject="hami.ledger.v1.cluster", reply=reply)


def heartbeat(last: int) -> Msg:
    headers = {"Status": "100", "Nats-Last-Consumer": str(last)}
    return Msg(cast("Any", None), subject="_INBOX_w.x", headers=headers)


@dataclass
class Served:
    """A connection on which these messages come, and then none."""

    messages: Sequence[Msg]
    subject: str = "_INBOX_w.x"
    taken: list[int] = field(default_factory=list)
    asked: list[tuple[str, FeedRequest]] = field(default_factory=list)
    listens: bool = False

    def new_inbox(self) -> str:
        return self.subject

    async def subscribe(self, subject: str) -> Served:
        self.listens = subject == self.subject
        return self

    async def unsubscribe(self) -> None:
        self.listens = False

    async def next_msg(self, timeout: float) -> Msg:
        assert timeout > 0
        if not self.messages:
            raise nats.errors.TimeoutError
        first, *self.messages = self.messages
        return first

    async def take(self, raw: Msg) -> None:
        self.taken.append(raw.metadata.sequence.consumer)

    async def ask(self, subject: str, request: FeedRequest) -> bytes:
        assert self.listens, "messages that come before the answer would be missed"
        self.asked.append((subject, request))
        return b"{}"


async def read(messages: Sequence[Msg]) -> Served:
    served = Served(messages)
    with pytest.raises((Unavailable, nats.errors.TimeoutError)) as ended:
        await read_feed(
            cast("Any", served), FeedKind.LEDGER_NUMBERS, served.take, served.ask, lambda: None
        )
    assert not served.listens
    served.messages = () if isinstance(ended.value, nats.errors.Error) else served.messages
    return served


async def test_messages_and_heartbeats_in_order_are_taken_until_the_server_is_silent() -> None:
    served = await read([message(1), heartbeat(1), message(2), heartbeat(2), heartbeat(2)])
    assert served.taken == [1, 2]
    assert [request.inbox for _, request in served.asked] == ["_INBOX_w.x"]


@pytest.mark.parametrize(
    "missed",
    [
        [message(1), message(3), message(4)],
        [message(2), message(3)],
        [message(1), heartbeat(2), message(3)],
    ],
    ids=["between", "the first", "the last before a heartbeat"],
)
async def test_what_comes_after_a_missed_message_is_not_taken(missed: list[Msg]) -> None:
    served = await read(missed)
    assert served.taken == [1][: len(served.taken)]
    assert served.messages, "it went on as if nothing was missed"
