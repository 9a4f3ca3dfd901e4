"""Requests that are under way when their responder ends."""

from __future__ import annotations

import asyncio

from hamicommon.bus.client import Bus, NobodyAnswers
from hamicommon.events import readiness_subject

from tests.waiting import eventually

SUBJECT = readiness_subject("a")


async def test_who_stops_serving_answers_what_is_under_way(bus: Bus) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()

    async def respond(_subject: str, body: bytes) -> bytes:
        if body == b"slow":
            came.set()
            await go_on.wait()
        return body

    async def served() -> bool:
        try:
            await bus.request(SUBJECT, b"ping")
        except NobodyAnswers:
            return False
        return True

    serving = asyncio.create_task(bus.serve(SUBJECT, "", respond))
    await eventually(served, "the responder")
    slow = asyncio.create_task(bus.request(SUBJECT, b"slow"))
    await came.wait()
    serving.cancel()
    go_on.set()

    assert await slow == b"slow"
    await asyncio.wait([serving])
