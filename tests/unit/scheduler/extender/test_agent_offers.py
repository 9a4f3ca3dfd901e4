"""Questions to agents before the first grant goes to their node."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from hami_scheduler.extender.agent_offers import AgentOffers
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.cluster import AgentNotReady, GrantAnnouncer
from hamicommon.domain.ids import NodeName

NODE = NodeName("n1")


class Announcer:
    """An agent that answers when it is let, and counts the questions."""

    def __init__(self, answer: bool | AgentNotReady | None) -> None:
        self.answer = answer
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def binds_late(self, node: NodeName) -> bool | None:
        """See the port."""
        assert node == NODE
        self.asked += 1
        await self.may_answer.wait()
        if isinstance(self.answer, AgentNotReady):
            raise self.answer
        return self.answer


def offers_of(announcer: Announcer, unanswered: list[NodeName]) -> AgentOffers:
    return AgentOffers(
        cast(GrantAnnouncer, announcer),
        on_unanswered=unanswered.append,
        instruments=SchedulerInstruments(),
    )


async def test_all_that_wait_for_a_node_ask_its_agent_once() -> None:
    announcer = Announcer(True)
    offers = offers_of(announcer, [])
    asking = [asyncio.create_task(offers.binds_late(NODE)) for _ in range(5)]
    await asyncio.sleep(0)  # each of them has asked
    asking[0].cancel()
    announcer.may_answer.set()

    answers = await asyncio.gather(*asking, return_exceptions=True)

    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [True] * 4
    assert announcer.asked == 1


async def test_an_agent_that_can_take_no_pod_is_reported_and_asked_again() -> None:
    announcer = Announcer(AgentNotReady("its kubelet is away"))
    announcer.may_answer.set()
    unanswered: list[NodeName] = []
    offers = offers_of(announcer, unanswered)
    for _ in range(2):
        with pytest.raises(AgentNotReady, match="kubelet is away"):
            await offers.binds_late(NODE)

    assert unanswered == [NODE, NODE]
    assert announcer.asked == 2
