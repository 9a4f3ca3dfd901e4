"""Reports on their way to the bus: in order, kept until stored, and retried slowly."""

from __future__ import annotations

import asyncio

import pytest
from hami_node_agent.grants import reports as subject
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.reports import Reports, send_reports
from hami_node_agent.grants.state import NodeState
from hamicommon.errors import Unavailable
from pydantic import BaseModel

from tests.unit.node_agent.builders import a_grant
from tests.waiting import eventually

MADE = [Reports("n").failed_report(a_grant(pod=pod), "no card") for pod in ("a", "b", "c")]


class Store:
    """A disk that may be full."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full

    def save(self, state: AgentState) -> None:
        del state
        if self.full:
            raise Unavailable("no space left on device")


class Bus:
    """Accepts reports after some refusals."""

    connected = True

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.stored: list[str] = []

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        del subject, payload
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("NATS: no stream")
        self.stored.append(message_id)


class Pauses:
    """Stands for `asyncio.sleep`: notes the pauses, and ends the loop after some of them."""

    def __init__(self, most: int) -> None:
        self.seconds: list[float] = []
        self._most = most

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if len(self.seconds) == self._most:
            raise asyncio.CancelledError


def waiting(store: Store) -> NodeState:
    saved = AgentState()
    for report in MADE:
        saved = saved.with_report(report)
    return NodeState(store, saved)


@pytest.mark.parametrize("full", [False, True], ids=["the bus refuses", "the disk is full"])
async def test_reports_that_stay_are_tried_less_and_less_often(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, bus = Pauses(8), Bus(0 if full else 1000)
    monkeypatch.setattr(subject.asyncio, "sleep", pauses)
    with pytest.raises(asyncio.CancelledError):
        await send_reports(waiting(Store(full=full)), bus, node="n")

    assert pauses.seconds[0] <= subject.RETRY_FIRST_S
    assert all(pause_s >= subject.RETRY_LAST_S / 2 for pause_s in pauses.seconds[-3:])
    assert max(pauses.seconds) <= subject.RETRY_LAST_S
    # One that is stored and can't be dropped keeps the others from being published again each time.
    assert bus.stored == ([MADE[0].report_id] * 8 if full else [])


async def test_after_a_refusal_all_reports_are_stored_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "RETRY_FIRST_S", 0.0)
    state, bus = waiting(Store()), Bus(2)
    sending = asyncio.create_task(send_reports(state, bus, node="n"))
    await eventually(lambda: not state.saved.reports)
    sending.cancel()

    assert bus.stored == [report.report_id for report in MADE]
