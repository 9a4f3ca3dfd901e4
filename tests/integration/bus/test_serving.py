"""Requests that are answered together, and what is sent to who listens."""

from __future__ import annotations

import asyncio

from hamicommon.bus.client import Bus, Message, NobodyAnswers
from hamicommon.events import LEADER_SUBJECT, LeaderAnnounced, replica_subject

from tests.waiting import PATIENCE_S, eventually

CALLS = replica_subject("a", "*")


async def until_served(bus: Bus) -> None:
    async def served() -> bool:
        try:
            await bus.request(replica_subject("a", "ping"), b"ping")
        except NobodyAnswers:
            return False
        return True

    await eventually(served, "the responder")


async def test_requests_that_are_served_together_wait_for_none_before_them(bus: Bus) -> None:
    second_came = asyncio.Event()

    async def respond(subject: str, body: bytes) -> bytes:
        if subject.endswith(".bind"):
            await second_came.wait()
        elif subject.endswith(".filter"):
            second_came.set()
        return body

    serving = asyncio.create_task(bus.serve(CALLS, "", respond, together=True))
    await until_served(bus)
    bind = asyncio.create_task(
        bus.request(replica_subject("a", "bind"), b"one", timeout_s=PATIENCE_S)
    )
    filtered = await bus.request(replica_subject("a", "filter"), b"two", timeout_s=PATIENCE_S)

    assert (filtered, await bind) == (b"two", b"one")
    serving.cancel()
    await asyncio.wait([serving])


async def test_who_stops_serving_answers_what_is_under_way(bus: Bus) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def respond(subject: str, body: bytes) -> bytes:
        if subject.endswith(".bind"):
            came.set()
            await go_on.wait()
        return body

    serving = asyncio.create_task(bus.serve(CALLS, "", respond, together=True))
    await until_served(bus)
    bind = asyncio.create_task(
        bus.request(replica_subject("a", "bind"), b"one", timeout_s=PATIENCE_S)
    )
    await came.wait()
    serving.cancel()
    go_on.set()

    assert await bind == b"one"
    await asyncio.wait([serving])


async def test_a_broadcast_reaches_who_listens(bus: Bus) -> None:
    heard: asyncio.Queue[Message] = asyncio.Queue()
    following = asyncio.create_task(bus.follow((LEADER_SUBJECT,), heard.put))
    announced = LeaderAnnounced(replica="a")

    async def arrived() -> bool:
        await bus.broadcast(LEADER_SUBJECT, announced)
        return not heard.empty()

    await eventually(arrived, "the announcement")

    message = heard.get_nowait()
    assert LeaderAnnounced.model_validate_json(message.data) == announced
    following.cancel()
    await asyncio.wait([following])
