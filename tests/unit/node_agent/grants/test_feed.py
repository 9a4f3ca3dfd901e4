"""A grant snapshot with one grant that can't be read: the others are known, none is withdrawn."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import methodcaller
from typing import Any, cast

from hami_node_agent.grants.feed import GrantsFeed
from hami_node_agent.grants.records import AgentState
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState
from hamicommon import events
from hamicommon.grants.grant import grant_of
from hamicommon.process.bulkhead import Bulkhead

from tests.unit.hamicommon.grants.test_grant import NOW, an_allocation
from tests.unit.node_agent.builders import a_record

GRANT = grant_of(an_allocation(), expires_at=NOW)


class Store:
    def save(self, state: AgentState) -> None:
        del state


class Bus:
    connected = True

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    async def request(self, subject: str, payload: Any, *, timeout_s: float) -> bytes:
        del subject, payload, timeout_s
        snapshot = events.GrantSnapshot(
            node=GRANT.node,
            complete=True,
            taken_at=datetime.now(UTC),
            grants=tuple(
                events.GrantState(
                    grant=GRANT.model_copy(update={"allocation_id": uid, "pod_uid": uid}),
                    state=state,
                )
                for uid, state in self.states.items()
            ),
        )
        return snapshot.model_dump_json().encode()


async def test_grants_around_a_poisonous_one_are_known_and_none_is_withdrawn() -> None:
    bus, bulkhead = Bus(), Bulkhead()
    state = NodeState(Store(), AgentState())
    feed = GrantsFeed(
        cast(Any, bus),
        state,
        reports=Reports(GRANT.node),
        node=GRANT.node,
        snapshot_interval_s=60.0,
        bulkhead=bulkhead,
    )
    bus.states = dict.fromkeys(("first", "poison"), "bound")
    assert await feed.refresh()

    bus.states = {"first": "bound", "poison": "a state of another release", "last": "bound"}
    assert not await feed.refresh()

    assert state.book.grants.keys() == {"first", "poison", "last"}
    assert bulkhead.failures == {"grant snapshot": 1}


async def test_a_report_that_the_ledger_never_takes_is_repeated_less_and_less_often() -> None:
    """A grant that stays `bound` in the ledger, whatever its node reports."""
    bus = Bus()
    state = NodeState(Store(), AgentState())
    feed = GrantsFeed(
        cast(Any, bus),
        state,
        reports=Reports(GRANT.node),
        node=GRANT.node,
        snapshot_interval_s=60.0,
    )
    bus.states = {GRANT.allocation_id: "bound"}
    await feed.refresh()
    [known] = state.book.grants.values()
    records = [
        a_record(known, container.name, ids={container.name}, nonce=container.name)
        for container in known.containers
        if container.shares
    ]
    await state.change(lambda saved: saved.with_records(records))

    due = []
    for comparison in range(1, 65):
        await feed._remind()
        if state.saved.reports:
            due.append(comparison)
        for report in state.saved.reports:
            await state.change(methodcaller("without_report", report.report_id))

    assert due == [2, 4, 8, 16, 32, 64]
