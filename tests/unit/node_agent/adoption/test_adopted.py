"""Adopted pods whose answers the kubelet's checkpoint does not have."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hami_node_agent.adoption import adopted as subject
from hami_node_agent.adoption.adopted import AdoptedAnswers
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.state import NodeState

from tests.unit.node_agent.builders import a_book, a_grant


class Kubelet:
    """Has nothing of the pod."""

    def save(self, state: AgentState) -> None:
        """Always succeeds."""

    async def holdings(self) -> tuple[Holding, ...]:
        return ()


async def test_a_kubelet_without_the_pod_is_asked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []

    async def wait(seen: int, timeout_s: float | None = None) -> int:
        assert timeout_s is not None
        pauses_s.append(timeout_s)
        if len(pauses_s) == 8:
            raise asyncio.CancelledError
        return seen

    kubelet: Any = Kubelet()
    state = NodeState(kubelet, AgentState())
    state.book = a_book(replace(a_grant(), answered=True))
    monkeypatch.setattr(state.book_changed, "wait", wait)
    with pytest.raises(asyncio.CancelledError):
        await AdoptedAnswers(state, kubelet_state=kubelet).run()

    assert pauses_s[0] <= subject.RETRY_FIRST_S
    assert all(pause_s >= subject.RETRY_LAST_S / 2 for pause_s in pauses_s[-3:])
    assert max(pauses_s) <= subject.RETRY_LAST_S
