"""Tenants' text is bounded and on one line in everything that the scheduler hands on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesPodEvents
from hami_scheduler.adapters.postgres.housekeeping import (
    MAX_DETAIL,
    MAX_SUBJECT,
    PostgresJournal,
)
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.ports.cluster import PodEvent
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.process.shutdown import end

from tests.waiting import PATIENCE_S

HOSTILE = "\x1b[2Jall is well\n\0\ud800\u202e" + "x" * 300_000


class Api:
    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.created = asyncio.Event()

    async def create(self, path: str, body: Mapping[str, Any]) -> None:
        del path
        self.bodies.append(body)
        self.created.set()


async def test_an_events_message_is_clipped() -> None:
    api = Api()
    background = BackgroundQueue()
    events = KubernetesPodEvents(cast(Any, api), background, component="hami-scheduler")
    events.emit(
        PodEvent(pod=PodRef("ns", "p", PodUid("u")), reason="FilteringFailed", message=HOSTILE)
    )
    running = asyncio.create_task(background.run())
    async with asyncio.timeout(PATIENCE_S):
        await api.created.wait()
    await end([running])

    [body] = api.bodies
    assert len(body["message"]) <= 1024
    assert body["message"].isprintable()


@pytest.mark.parametrize("text", [HOSTILE, "what fits"])
async def test_a_line_of_the_journal_is_clipped(text: str) -> None:
    class Database:
        async def fetch(self, query: str, *values: object) -> None:
            self.values = values

    database = Database()
    await PostgresJournal(cast(Any, database)).drift("drift", text, text, repaired=False)

    _, subject, detail, _ = database.values
    assert str(subject).isprintable()
    assert str(detail).isprintable()
    assert len(str(subject)) <= MAX_SUBJECT
    assert len(str(detail)) <= MAX_DETAIL
    assert (subject == detail == text) is (text == "what fits")
