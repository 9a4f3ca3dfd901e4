"""Records for the answers of HAMi's device plugin that the ledger has adopted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_node_agent.adoption.adopted import foreign_records
from hami_node_agent.allocation.prestart import find_record
from hami_node_agent.grants.book import GrantBook
from hami_node_agent.grants.ports import Holding
from hami_node_agent.grants.records import AgentState

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_foreign_holding, a_grant


def test_an_adopted_answer_gets_a_record_once() -> None:
    book = GrantBook().announced(replace(a_grant(), answered=True))

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
    book = GrantBook().announced(replace(a_grant(), answered=answered))

    assert foreign_records(book, [holding], []) == []
