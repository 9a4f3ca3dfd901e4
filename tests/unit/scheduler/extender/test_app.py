"""The verbs' answers leave first, what is recorded of them comes after."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.extender.app import ExtenderApp
from hami_scheduler.extender.bind import Bind
from hami_scheduler.extender.filter import Filter
from hami_scheduler.extender.host_scoring import HostScoring
from hami_scheduler.extender.protocol import ExtenderArgs


class Filtering:
    """Answers with a body; its record is noted, or fails."""

    def __init__(self, done: list[str], error: Exception | None = None) -> None:
        self._done = done
        self._error = error

    async def filter(
        self, args: ExtenderArgs, *, received: float
    ) -> tuple[bytes, Callable[[], None]]:
        del args, received

        def record() -> None:
            self._done.append("recorded")
            if self._error is not None:
                raise self._error

        return b"{}", record


async def call(done: list[str], filtering: Filtering, *, gone: bool = False) -> None:
    app = ExtenderApp(
        filtering=cast(Filter, filtering),
        hosts=cast(HostScoring, None),
        binding=cast(Bind, None),
        deferred=DeferredWrites(),
        rest=cast(Any, None),
    )

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"Pod":{}}'}

    async def send(message: Any) -> None:
        if gone:
            raise ConnectionResetError
        done.append(message["type"])

    await app({"type": "http", "method": "POST", "path": "/filter"}, receive, send)


async def test_a_decision_is_recorded_when_its_answer_has_left() -> None:
    done: list[str] = []

    await call(done, Filtering(done))

    assert done == ["http.response.start", "http.response.body", "recorded"]


async def test_a_caller_that_has_gone_leaves_a_record_too() -> None:
    done: list[str] = []

    with pytest.raises(ConnectionResetError):
        await call(done, Filtering(done), gone=True)

    assert done == ["recorded"]


async def test_a_record_that_fails_is_logged_and_costs_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    with caplog.at_level(logging.ERROR):
        await call(done, Filtering(done, error=ValueError("poison")))

    assert done[1] == "http.response.body"
    assert [each.getMessage() for each in caplog.records] == ["failed after the answer"]
