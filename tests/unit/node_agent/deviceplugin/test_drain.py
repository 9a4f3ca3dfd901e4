import asyncio
from dataclasses import replace

import pytest
from hami_node_agent.deviceplugin.drain import GRANT_FOLLOWS_S, Drain
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.records import AgentState, PodsSeen
from hami_node_agent.grants.state import NodeState
from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import PodUid

from tests.unit.node_agent.builders import a_book, a_grant, a_record
from tests.waiting import PATIENCE_S

BOUND = a_grant(pod="bound", state=AllocationState.BOUND)


class Store:
    def save(self, state: AgentState) -> None:
        return None


class Pods:
    def __init__(self) -> None:
        self.ended: frozenset[PodUid] = frozenset()

    def snapshot(self) -> PodsSeen:
        return PodsSeen(ended=self.ended)


def node(*grants: NodeGrant) -> NodeState:
    state = NodeState(Store(), AgentState())
    state.book = a_book(*grants)
    return state


async def test_a_stop_waits_for_a_pod_that_was_bound() -> None:
    state = node(BOUND)
    draining = Drain(state, Pods(), drain_s=30.0)
    waiting = asyncio.create_task(draining.drain())
    await asyncio.sleep(0)
    assert draining.begun
    assert not waiting.done()

    await state.change(lambda saved: saved.with_records([a_record(BOUND, ids={"x"})]))

    await asyncio.wait_for(waiting, PATIENCE_S)
    assert draining.coming() == []


@pytest.mark.parametrize(
    "grant",
    [
        a_grant(state=AllocationState.ALLOCATED),
        a_grant(state=AllocationState.RELEASING),
        replace(BOUND, answered=True),
    ],
    ids=["allocated", "releasing", "adopted"],
)
async def test_a_stop_waits_for_nobody_who_does_not_come(grant: NodeGrant) -> None:
    assert Drain(node(grant), Pods(), drain_s=30.0).coming() == []


async def test_a_pod_that_ended_is_not_waited_for_and_time_has_an_end() -> None:
    pods = Pods()
    draining = Drain(node(BOUND), pods, drain_s=0.0)
    assert draining.coming() == ["bound"]

    await asyncio.wait_for(draining.drain(), PATIENCE_S)
    pods.ended = frozenset({PodUid("bound")})

    assert draining.coming() == []


async def test_a_stop_waits_for_the_grant_of_a_pod_that_was_just_answered_yes() -> None:
    state = node()
    draining = Drain(state, Pods(), drain_s=30.0)
    draining.expect_grant()
    waiting = asyncio.create_task(draining.drain())
    await asyncio.sleep(0)
    assert not waiting.done(), "nobody was granted anything yet"

    state.book = a_book(BOUND)
    await asyncio.wait([waiting], timeout=GRANT_FOLLOWS_S + 0.5)
    assert not waiting.done(), "the pod has not asked for its cards"
    await state.change(lambda saved: saved.with_records([a_record(BOUND, ids={"x"})]))

    await asyncio.wait_for(waiting, PATIENCE_S)
