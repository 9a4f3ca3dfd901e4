"""Adopted pods whose answers the kubelet's checkpoint does not have."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hami_node_agent.adoption import adopted as subject
from hami_node_agent.adoption.adopted import AdoptedAnswers, foreign_records
from hami_node_agent.allocation.prestart import find_record
from hami_node_agent.grants.book import GrantBook
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.state import NodeState

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_book, a_foreign_holding, a_grant


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


# --- records for the answers of HAMi's device plugin that the ledger has adopted


def test_an_adopted_answer_gets_a_record_once() -> None:
    book = GrantBook().with_grant(replace(a_grant(), answered=True))

    [record] = foreign_records(book, [a_foreign_holding()], [])

    assert record.foreign
    assert (record.pod_uid, record.container, record.cache_dir) == ("pod-1", "main", "x_main")
    assert record.cards == (CARD_A,)
    assert foreign_records(book, [a_foreign_holding()], [record]) == []
    saved = AgentState().with_records([record])
    assert find_record(a_foreign_holding(), saved) == record


@pytest.mark.parametrize(
    ("answered", "holding"),
    [
        pytest.param(False, a_foreign_holding(), id="a grant of ours, whose Allocate will come"),
        pytest.param(True, a_foreign_holding("pod-2"), id="a pod without a grant"),
        pytest.param(True, a_foreign_holding("pod-1", CARD_B), id="another card than adopted"),
    ],
)
def test_nothing_else_gets_one(answered: bool, holding: Holding) -> None:
    book = GrantBook().with_grant(replace(a_grant(), answered=answered))

    assert foreign_records(book, [holding], []) == []
