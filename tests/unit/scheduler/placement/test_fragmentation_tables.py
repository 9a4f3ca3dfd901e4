"""Decisions never wait for the tables of the policy fragmentation: they are made in a thread."""

from __future__ import annotations

import logging

import pytest
from hami_scheduler.placement.fragmentation_tables import TableMaker
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest
from hamicommon.fragmentation.policy import Fragmentation
from hamicommon.fragmentation.tables import Tables
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.placement.engine import decide

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of


def core_request(core_percent: int) -> PodRequest:
    wanted = cards(memory_mib=1, core_percent=core_percent)
    return pod(wanted, node="fragmentation", gpu=("fragmentation",))


def tables_of(view: ClusterView) -> Tables:
    return view.memory.get_or_create(Fragmentation).tables.of(view)


def arrive(view: ClusterView, core_percent: int, times: int = 40) -> None:
    shape = shape_of(core_request(core_percent))
    assert shape is not None
    for _ in range(times):
        view.usual.add_arrival(shape)


async def test_a_decision_goes_by_the_tables_of_before_until_others_are_made() -> None:
    view = view_of({"a": [card("a")], "b": [card("b")]})
    maker = TableMaker(view)
    arrive(view, 80)
    assert decide(core_request(80), view).placement is not None
    first = tables_of(view)
    assert not first.lost.any(), "no linear program was solved for a decision"

    await maker.once()
    made = tables_of(view)
    assert made is not first
    assert made.mix is view.usual.mix
    assert made.lost.any()
    assert view.memory.get_or_create(Fragmentation).pending() is None

    arrive(view, 30, 400)
    assert decide(core_request(30), view).placement is not None
    assert tables_of(view) is made
    await maker.once()
    assert tables_of(view).mix is view.usual.mix


async def test_a_new_kind_of_card_is_placed_on_before_its_tables_are_made() -> None:
    view = view_of({"a": [card("a")]})
    maker = TableMaker(view)
    arrive(view, 80)
    tables_of(view)
    make = view.memory.get_or_create(Fragmentation).pending()
    assert make is not None
    new = NodeName("b")
    view.set_node(new, [CardState(card("b", type="other"), 1)])

    assert decide(core_request(80), view, candidates=[new]).placement is not None
    put = make()
    put()
    assert not tables_of(view).lost.any(), "tables of other kinds of cards are of no use"
    await maker.once()
    assert tables_of(view).lost.any()


async def test_with_nothing_wanted_a_round_does_nothing() -> None:
    view = view_of({"a": [card("a")]})
    maker = TableMaker(view)
    tables_of(view)
    await maker.once()
    made = tables_of(view)
    await maker.once()
    assert tables_of(view) is made


async def test_tables_that_are_late_are_named_in_the_log_and_used_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    view = view_of({"a": [card("a")]})
    maker = TableMaker(view, late_s=0)
    arrive(view, 80)
    tables_of(view)
    with caplog.at_level(logging.WARNING):
        await maker.once()

    assert "Using the previous fragmentation tables" in caplog.text
    assert tables_of(view).lost.any()
